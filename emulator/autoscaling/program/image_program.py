"""Find the images that a server runs as workers, from `--image` and `--build`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from common.setting_error import SettingError
from emulator.autoscaling.containers.abandoned import remove_abandoned_containers
from emulator.autoscaling.containers.container_engine import ContainerEngine, find_container_engine
from emulator.autoscaling.containers.worker_image import (
    HOST_NETWORK,
    WorkerImage,
    prepare_image,
    split_arguments,
    split_run_arguments,
)
from emulator.autoscaling.program.dockerfile import find_dockerfile
from emulator.autoscaling.program.handler_file import to_endpoint_id
from emulator.autoscaling.program.volume import resolve_volume
from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.settings.emulator_settings import EmulatorSettings
from handler.delivery.outbound_targets import is_loopback

logger = logging.getLogger(__name__)

# A reference has no `=`.
_NAMED = re.compile(r"([^=]+)=(.+)")
_ENDPOINT = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATORS = re.compile(r"[_-]{2,}")
_BRIDGE_NETWORK = "bridge"
# The tag of an image that was built here and has no name of the user's.
_BUILD_TAG = "worker-rkllm"
_NAMELESS = "worker"


def name_image_endpoint(reference: str) -> str:
    """Return an endpoint ID made of the last part of an image's name, without tag and digest."""
    return to_endpoint_id(reference.partition("@")[0].rpartition("/")[2].partition(":")[0])


def find_image_programs(
    settings: EmulatorSettings, images: Sequence[str] = ()
) -> dict[str, WorkerProgram]:
    """Return the programs of the images by endpoint, after each was built or pulled; {} for none.

    `images` are those of the options; without them, those of WORKER_IMAGE and WORKER_BUILD count.
    Containers of a server that was killed are removed. Blocks while an image is built or pulled.

    Raises:
        SettingError: a setting cannot be used, or an image cannot be built or pulled.
    """
    names = images or [each.strip() for each in settings.worker_image.split(",") if each.strip()]
    folder = None if settings.worker_build is None else _check_folder(settings.worker_build)
    if folder is not None and len(names) > 1:
        raise SettingError(f"--build builds one image, and --image names {len(names)}")
    if folder is not None and not names:
        names = [f"{_name_image(folder)}:{_BUILD_TAG}"]
    if not names:
        return {}
    if settings.worker_command:
        raise SettingError(
            "WORKER_COMMAND has no effect on --image, which runs the image's command"
        )
    references = _by_endpoint(settings, names)
    engine = find_container_engine(settings.container_engine)
    remove_abandoned_containers(engine)
    network = settings.worker_network or _choose_network(engine)
    _warn_about_network(settings, engine, network)
    programs = {}
    for endpoint, reference in references.items():
        image = WorkerImage(
            engine=engine,
            reference=reference,
            folders=(folder or Path.cwd(),),
            build_folder=folder,
            build_arguments=split_arguments(settings.worker_build_args, "WORKER_BUILD_ARGS"),
            run_arguments=split_run_arguments(settings.worker_run_args),
            volume=None if settings.volume_dir is None else resolve_volume(settings.volume_dir),
            gpus=settings.worker_gpus,
            network=network,
            platform=settings.worker_platform,
        )
        programs[endpoint] = WorkerProgram(command=(), image=prepare_image(image))
    return programs


def _by_endpoint(settings: EmulatorSettings, names: Sequence[str]) -> dict[str, str]:
    references: dict[str, str] = {}
    for name in names:
        if not name.strip():
            raise SettingError("--image: the image's name is empty")
        match = _NAMED.fullmatch(name)
        reference = name if match is None else match[2]
        endpoint = name_image_endpoint(reference) if match is None else match[1]
        if match is None and not references and "endpoint_id" in settings.model_fields_set:
            endpoint = settings.endpoint_id
        if _ENDPOINT.fullmatch(endpoint) is None:
            raise SettingError(
                f"--image: the endpoint's ID {endpoint!r} of {reference} must consist of letters "
                "A-Z, digits, - and _"
            )
        if endpoint in references:
            raise SettingError(
                f"--image: {references[endpoint]} and {reference} have the endpoint {endpoint}; "
                f"name one of them, as in --image other-{endpoint}={reference}"
            )
        references[endpoint] = reference
    return references


def _name_image(folder: Path) -> str:
    """Return a name for the image of a folder, which has letters or digits around each separator.

    https://github.com/distribution/reference has the grammar of names.
    """
    name = _SEPARATORS.sub("-", to_endpoint_id(folder.name).lower())
    return name.strip("_-") or _NAMELESS


def _check_folder(folder: Path) -> Path:
    absolute = folder.expanduser().resolve()
    if not absolute.is_dir():
        raise SettingError(f"--build: there is no folder {folder}")
    if find_dockerfile(absolute) is None:
        raise SettingError(f"--build: {folder} has no Dockerfile and no .runpod/Dockerfile")
    return absolute


def _choose_network(engine: ContainerEngine) -> str:
    is_desktop, _ = engine.describe_host()
    return _BRIDGE_NETWORK if is_desktop else HOST_NETWORK


def _warn_about_network(settings: EmulatorSettings, engine: ContainerEngine, network: str) -> None:
    """Warn if the containers cannot reach the server, which would only be seen as a long start."""
    is_desktop, is_rootless = engine.describe_host()
    if not is_loopback(settings.host) or is_desktop:
        return
    if network != HOST_NETWORK or is_rootless:
        reason = f"network {network}" if network != HOST_NETWORK else "Docker without root"
        logger.warning(
            "the containers (%s) do not reach HOST=%s; set HOST to an address of this machine, "
            "such as 0.0.0.0 with API_KEYS%s",
            *(reason, settings.host),
            ", and WORKER_NETWORK=bridge" if is_rootless and network == HOST_NETWORK else "",
        )

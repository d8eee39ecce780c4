"""A user's image, as the workers of an endpoint run it."""

from __future__ import annotations

import csv
import io
import logging
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from common.setting_error import SettingError
from emulator.autoscaling.containers.abandoned import SERVER_LABEL, describe_this_process
from emulator.autoscaling.containers.container_engine import ContainerEngine, ContainerEngineError
from emulator.autoscaling.program.dockerfile import find_dockerfile
from emulator.autoscaling.program.volume_mount import VOLUME

logger = logging.getLogger(__name__)

HOST_NETWORK = "host"
# Images that were built here have it, with the folder as its value.
BUILD_LABEL = "worker-rkllm.build"
# The names of processors as images have them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_ID_CHARS = 19
# With them, the server would not see the end of a container, or not find it.
_RESERVED_ARGUMENTS = ("-d", "--detach", "--name", "--rm")
# A variable with one of these names would change what the program `docker` itself does.
_CLIENT_VARIABLES = re.compile(
    r"PATH|HOME|TMPDIR|LD_.*|DOCKER_.*|BUILDKIT_.*|CONTAINERS?_.*|XDG_.*|.*_PROXY", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerImage:
    """An image and how its containers are run.

    `build_folder` is the project that it is built from, if it is. `folders` have the `.env` and the
    tests. `volume` is the folder that the containers have as `/runpod-volume`. `platform` is that
    of the image, as in `linux/amd64`; `image_id` is the image's own, known after `prepare_image`.
    """

    engine: ContainerEngine
    reference: str
    folders: Sequence[Path] = ()
    build_folder: Path | None = None
    build_arguments: Sequence[str] = ()
    run_arguments: Sequence[str] = ()
    volume: Path | None = None
    gpus: str = ""
    network: str = HOST_NETWORK
    platform: str = ""
    image_id: str = ""

    def __str__(self) -> str:
        """Return the image for the log at the start."""
        return f"{self.reference} ({self.image_id[:_ID_CHARS]}, {self.platform}) in {self.engine}"

    def build_command(self) -> list[str]:
        """Return the arguments of the engine that build the image; it has a `build_folder`."""
        assert self.build_folder is not None  # noqa: S101 - the caller has checked
        dockerfile = find_dockerfile(self.build_folder)
        return [
            "build",
            *("--tag", self.reference),
            *("--label", f"{BUILD_LABEL}={self.build_folder}"),
            *(() if dockerfile is None else ("--file", str(dockerfile))),
            *(("--platform", self.platform) if self.platform else ()),
            *self.build_arguments,
            str(self.build_folder),
        ]

    def prune_arguments(self) -> list[str]:
        """Return the arguments that remove earlier builds of this folder that nothing uses."""
        label = f"label={BUILD_LABEL}={self.build_folder}"
        return ["image", "prune", "--force", "--filter", label]

    def run_command(self, container: str, variables: Mapping[str, str]) -> list[str]:
        """Return the command that runs a container in the foreground.

        The variables are named, and their values are those of the process (`client_environment`):
        other users of the machine can read a command. Not `--rm`: how it ended is asked afterwards.
        """
        return [
            self.engine.program,
            "run",
            *("--name", container),
            *("--label", f"{SERVER_LABEL}={describe_this_process()}"),
            # It was pulled or built at the start.
            *("--pull", "never"),
            *("--network", self.network),
            *(() if self.network == HOST_NETWORK else self.engine.host_name_arguments),
            *(("--platform", self.platform) if self.platform else ()),
            *(() if self.volume is None else ("--mount", _mount(self.volume))),
            *(self.engine.gpu_arguments(self.gpus) if self.gpus else ()),
            *_variable_arguments(variables),
            *self.run_arguments,
            # The tag of a build may be that of another folder with the same name meanwhile.
            self.reference if self.build_folder is None else self.image_id or self.reference,
        ]

    def explain_missing_command(self, inspected: Mapping[str, object]) -> str | None:
        """Return as a predicate why the image cannot be run; None if it has a command."""
        config = inspected.get("Config")
        if not isinstance(config, Mapping) or config.get("Cmd") or config.get("Entrypoint"):
            return None
        if any(word.partition("=")[0] == "--entrypoint" for word in self.run_arguments):
            return None
        return (
            "has neither CMD nor ENTRYPOINT, so that its containers run nothing; end its "
            'Dockerfile with a line such as CMD ["python", "-u", "/handler.py"]'
        )

    def url_for_container(self, url: str) -> str:
        """Return the server's address as a container of this network calls it."""
        if self.network == HOST_NETWORK:
            return url
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{self.engine.host_name}:{parts.port}"))


def _mount(folder: Path) -> str:
    """Return the value of `--mount` for the volume.

    A line of CSV, so that the folder's name may contain commas, and colons, which `--volume` splits
    at: https://docs.docker.com/engine/storage/bind-mounts/
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        ["type=bind", f"source={folder}", f"target={VOLUME}"]
    )
    return line.getvalue()


def _variable_arguments(variables: Mapping[str, str]) -> list[str]:
    arguments = []
    for name, value in variables.items():
        is_of_client = _CLIENT_VARIABLES.fullmatch(name) is not None
        arguments += ["--env", f"{name}={value}" if is_of_client else name]
    return arguments


def client_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the engine's program: this process's and the variables."""
    passed = {key: text for key, text in variables.items() if not _CLIENT_VARIABLES.fullmatch(key)}
    return {**os.environ, **passed}


def find_platform(inspected: Mapping[str, object]) -> str:
    """Return the platform of an image, such as `linux/amd64`, from what the engine knows of it."""
    words = [str(inspected.get(name) or "") for name in ("Os", "Architecture", "Variant")]
    return "/".join(word for word in words if word)


def is_of_this_machine(image_platform: str) -> bool:
    """Return whether this machine's processor runs an image without an emulator."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine) in image_platform.split("/")


def prepare_image(image: WorkerImage) -> WorkerImage:
    """Build the image, or pull it if the engine does not have it; return it with its platform.

    What the engine prints meanwhile is shown on the terminal. Blocks.

    Raises:
        SettingError: it cannot be built or pulled.
    """
    engine = image.engine
    inspected = None
    try:
        if image.build_folder is not None:
            engine.show(*image.build_command())
            engine.call(*image.prune_arguments())
        inspected = engine.inspect_image(image.reference)
        is_built = image.build_folder is not None
        if inspected is None or not (is_built or _has_platform(inspected, image.platform)):
            logger.info("%s pulls %s", engine, image.reference)
            platform_arguments = ("--platform", image.platform) if image.platform else ()
            engine.show("pull", *platform_arguments, image.reference)
            inspected = engine.inspect_image(image.reference)
    except ContainerEngineError as error:
        action = "pulled" if image.build_folder is None else f"built from {image.build_folder}"
        raise SettingError(
            f"--image: {image.reference} cannot be {action} with {engine}: {error}"
        ) from None
    if inspected is None:
        raise SettingError(f"--image: {engine} does not have {image.reference}")
    if problem := image.explain_missing_command(inspected):
        raise SettingError(f"--image: {image.reference} {problem}")
    if not _has_platform(inspected, image.platform):
        raise SettingError(
            f"--image: {image.reference} is for {find_platform(inspected)}, and WORKER_PLATFORM is "
            f"{image.platform}"
        )
    image = replace_identity(image, inspected)
    if not is_of_this_machine(image.platform):
        logger.warning(
            "%s is for %s and this machine is %s: its program is emulated, if the machine has an "
            "emulator, and ends with `exec format error` otherwise",
            *(image.reference, image.platform, platform.machine()),
        )
    return image


def _has_platform(inspected: Mapping[str, object], wish: str) -> bool:
    """Return whether an image is for a platform; an empty one is any."""
    return f"{find_platform(inspected)}/".startswith(f"{wish}/" if wish else "")


def replace_identity(image: WorkerImage, inspected: Mapping[str, object]) -> WorkerImage:
    """Return the image with the identity and platform that the engine knows."""
    identity = str(inspected.get("Id", ""))
    return replace(image, image_id=identity, platform=find_platform(inspected))


def split_run_arguments(text: str) -> list[str]:
    """Return the words of WORKER_RUN_ARGS.

    Raises:
        SettingError: its quotes are wrong, or an argument would hide a container from the server.
    """
    words = split_arguments(text, "WORKER_RUN_ARGS")
    for word in words:
        if word.partition("=")[0] in _RESERVED_ARGUMENTS:
            raise SettingError(
                f"WORKER_RUN_ARGS: {word} cannot be used, because the server names each container, "
                "waits for its end and removes it"
            )
    return words


def split_arguments(text: str, setting: str) -> list[str]:
    """Return the words of a setting with arguments. Raises SettingError if its quotes are wrong."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingError(f"{setting}: {error}, got {text!r}") from None

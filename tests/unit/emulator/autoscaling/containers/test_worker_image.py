"""The command of a container, its variables, and how its image is obtained."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.containers.container_engine import ContainerEngine
from emulator.autoscaling.containers.worker_image import (
    BUILD_LABEL,
    WorkerImage,
    client_environment,
    is_of_this_machine,
    prepare_image,
    split_arguments,
)
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine

DOCKER, PODMAN = ContainerEngine("/bin/docker"), ContainerEngine("/bin/podman")
SECRET = {"RUNPOD_AI_API_KEY": "secret"}


def words(image: WorkerImage, **variables: str) -> str:
    return " ".join(image.run_command("c1", variables))


def test_variables_are_named_and_their_values_are_in_the_environment() -> None:
    image = WorkerImage(engine=DOCKER, reference="me/worker:1")
    command = words(image, **SECRET)
    assert "--env RUNPOD_AI_API_KEY " in command
    assert "secret" not in command
    assert client_environment(SECRET)["RUNPOD_AI_API_KEY"] == "secret"
    assert command.startswith("/bin/docker run --name c1 --label worker-rkllm.server=")
    assert command.endswith(" --network host --env RUNPOD_AI_API_KEY me/worker:1")


@pytest.mark.parametrize("name", ["PATH", "HOME", "DOCKER_HOST", "https_proxy", "LD_PRELOAD"])
def test_variables_of_the_engine_itself_reach_only_the_container(name: str) -> None:
    image = WorkerImage(engine=DOCKER, reference="w")
    assert f"--env {name}=of-the-worker " in words(image, **{name: "of-the-worker"})
    assert client_environment({name: "of-the-worker"}).get(name) == os.environ.get(name)


def test_volume_gpus_platform_and_more_arguments_come_before_the_image(tmp_path: Path) -> None:
    image = WorkerImage(
        engine=DOCKER,
        reference="w",
        volume=tmp_path,
        gpus="all",
        platform="linux/arm64",
        run_arguments=("--memory", "8g"),
    )
    assert words(image).endswith(
        f" --platform linux/arm64 --mount type=bind,source={tmp_path},target=/runpod-volume"
        " --gpus all --memory 8g w"
    )


def test_volume_may_have_a_colon_and_a_comma_in_its_name() -> None:
    image = WorkerImage(engine=DOCKER, reference="w", volume=Path('/a:b,"c"'))
    command = image.run_command("c", {})
    assert command[command.index("--mount") + 1] == (
        'type=bind,"source=/a:b,""c""",target=/runpod-volume'
    )


def test_container_of_a_build_runs_this_build_and_not_another_with_its_tag(tmp_path: Path) -> None:
    image = WorkerImage(engine=DOCKER, reference="w", build_folder=tmp_path, image_id="sha256:1")
    assert words(image).endswith(" sha256:1")
    assert words(WorkerImage(engine=DOCKER, reference="w", image_id="sha256:1")).endswith(" w")


@pytest.mark.parametrize(
    ("config", "arguments", "is_refused"),
    [
        ({}, (), True),
        ({"Env": ["A=1"], "Cmd": None, "Entrypoint": None}, (), True),
        ({}, ("--entrypoint", "sh"), False),
        ({}, ("--entrypoint=sh",), False),
        ({"Cmd": ["python"]}, (), False),
        ({"Entrypoint": ["python"]}, (), False),
    ],
)
def test_image_without_a_command_is_refused(
    engine: FakeEngine,
    config: dict[str, list[str]],
    arguments: tuple[str, ...],
    is_refused: bool,
) -> None:
    engine.set_image("sha256:1", config=config)
    image = WorkerImage(engine=engine, reference="w", run_arguments=arguments)
    if not is_refused:
        assert prepare_image(image).image_id == "sha256:1"
        return
    with pytest.raises(SettingError, match="--image: w has neither CMD nor ENTRYPOINT, so"):
        prepare_image(image)


@pytest.mark.parametrize(
    ("gpus", "arguments"),
    [
        ("all", "--device nvidia.com/gpu=all"),
        ("device=0,1", "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"),
    ],
)
def test_podman_names_gpus_as_devices(gpus: str, arguments: str) -> None:
    image = WorkerImage(engine=PODMAN, reference="w", gpus=gpus)
    assert words(image).endswith(f" {arguments} w")


@pytest.mark.parametrize(
    ("engine", "host", "is_added"),
    [(DOCKER, "host.docker.internal", True), (PODMAN, "host.containers.internal", False)],
)
def test_container_of_another_network_calls_the_machine_by_its_name(
    engine: ContainerEngine, host: str, is_added: bool
) -> None:
    image = WorkerImage(engine=engine, reference="w", network="bridge")
    assert image.url_for_container("http://127.0.0.1:8000") == f"http://{host}:8000"
    assert (f"--add-host {host}:host-gateway" in words(image)) is is_added
    own = WorkerImage(engine=engine, reference="w")
    assert own.url_for_container("http://127.0.0.1:8000") == "http://127.0.0.1:8000"


@pytest.mark.parametrize("file", [".runpod/Dockerfile", "Dockerfile"])
def test_build_uses_the_dockerfile_that_runpod_would_use(tmp_path: Path, file: str) -> None:
    (tmp_path / ".runpod").mkdir()
    (tmp_path / file).write_text("FROM x")
    image = WorkerImage(
        engine=DOCKER,
        reference="w:1",
        build_folder=tmp_path,
        build_arguments=("--build-arg", "A=1"),
        platform="linux/amd64",
    )
    assert image.build_command() == [
        *("build", "--tag", "w:1", "--label", f"{BUILD_LABEL}={tmp_path}"),
        *("--file", str(tmp_path / file), "--platform", "linux/amd64"),
        *("--build-arg", "A=1", str(tmp_path)),
    ]


def test_image_that_the_engine_has_is_not_pulled(engine: FakeEngine) -> None:
    engine.set_image("sha256:1")
    image = prepare_image(WorkerImage(engine=engine, reference="w"))
    assert (image.image_id, image.platform) == ("sha256:1", "linux/amd64")
    assert engine.calls == ["image inspect w"]


def test_missing_image_is_pulled_for_the_chosen_platform(engine: FakeEngine) -> None:
    pulled = '[{"Id": "sha256:2", "Os": "linux", "Architecture": "arm64"}]'
    engine.write("pull.sh", f"""echo '{pulled}' > "$here/image.json" """)
    image = prepare_image(WorkerImage(engine=engine, reference="w", platform="linux/arm64"))
    assert image.image_id == "sha256:2"
    assert engine.calls[1] == "pull --platform linux/arm64 w"


def test_image_for_another_platform_is_pulled_again_and_then_refused(engine: FakeEngine) -> None:
    engine.set_image("sha256:1", "linux/amd64")
    engine.write("pull.sh", ":")
    with pytest.raises(SettingError, match="w is for linux/amd64, and WORKER_PLATFORM is linux/"):
        prepare_image(WorkerImage(engine=engine, reference="w", platform="linux/arm64"))
    assert "pull --platform linux/arm64 w" in engine.calls
    prepare_image(WorkerImage(engine=engine, reference="w", platform="linux/amd64"))


def test_image_that_cannot_be_pulled_is_named(engine: FakeEngine) -> None:
    engine.write("pull.sh", "exit 1")
    with pytest.raises(SettingError, match="--image: w cannot be pulled with docker: exit code 1"):
        prepare_image(WorkerImage(engine=engine, reference="w"))


def test_image_is_built_at_the_start_and_earlier_builds_are_removed(
    engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    engine.write("build.sh", """echo '[{"Id": "sha256:3"}]' > "$here/image.json" """)
    image = prepare_image(WorkerImage(engine=engine, reference="w", build_folder=tmp_path))
    assert image.image_id == "sha256:3"
    assert engine.calls[1] == f"image prune --force --filter label={BUILD_LABEL}={tmp_path}"


def test_failed_build_at_the_start_names_the_folder(engine: FakeEngine, tmp_path: Path) -> None:
    engine.write("build.sh", "exit 7")
    with pytest.raises(SettingError, match=f"w cannot be built from {tmp_path} with docker"):
        prepare_image(WorkerImage(engine=engine, reference="w", build_folder=tmp_path))


def test_image_for_another_processor_is_warned_about(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.set_image("sha256:1", "linux/riscv64")
    with caplog.at_level(logging.WARNING):
        prepare_image(WorkerImage(engine=engine, reference="w"))
    assert "w is for linux/riscv64 and this machine is" in caplog.text
    assert not is_of_this_machine("linux/riscv64")


def test_split_arguments_names_the_setting_with_wrong_quotes() -> None:
    with pytest.raises(SettingError, match="WORKER_RUN_ARGS: No closing quotation"):
        split_arguments("--env 'A=1", "WORKER_RUN_ARGS")

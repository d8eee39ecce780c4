"""The images of a server, and the endpoint of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program import image_program
from emulator.autoscaling.program.image_program import find_image_programs, name_image_endpoint
from emulator.settings.emulator_settings import EmulatorSettings
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    folder = tmp_path / "engine"
    folder.mkdir()
    engine = FakeEngine(folder)
    engine.set_image("sha256:1")
    engine.write("info", "Debian [name=seccomp]")
    engine.write("build.sh", ":")
    monkeypatch.setattr(image_program, "find_container_engine", lambda chosen: engine)
    return engine


def settings(**changes: Any) -> EmulatorSettings:
    return EmulatorSettings(_env_file=None, **changes)


@pytest.mark.parametrize(
    ("reference", "endpoint"),
    [
        ("worker", "worker"),
        ("me/worker:1.2", "worker"),
        ("registry.example.com:5000/team/my.worker:latest", "my-worker"),
        ("worker@sha256:0123", "worker"),
    ],
)
def test_endpoint_is_named_after_the_image(reference: str, endpoint: str) -> None:
    assert name_image_endpoint(reference) == endpoint


def test_without_images_no_engine_is_needed() -> None:
    assert find_image_programs(settings()) == {}


@pytest.mark.usefixtures("engine")
def test_images_have_endpoints_and_the_first_may_be_named_by_its_setting() -> None:
    named = settings(worker_image="me/a:1, other=me/a:2", endpoint_id="mine")
    programs = find_image_programs(named)
    assert {name: each.name for name, each in programs.items()} == {
        "mine": "me/a:1",
        "other": "me/a:2",
    }
    assert list(find_image_programs(named, ["b"])) == ["mine"]
    assert [each.is_own_worker for each in programs.values()] == [False, False]


def test_build_needs_no_name(engine: FakeEngine, tmp_path: Path) -> None:
    folder = tmp_path / "My Worker"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM x")
    (folder / ".env").write_text("A=1")
    programs = find_image_programs(settings(worker_build=folder))
    program = programs["my-worker"]
    assert program.name == "my-worker:worker-rkllm"
    assert program.variables() == {"A": "1"}
    assert any(call.startswith("build --tag my-worker:worker-rkllm ") for call in engine.calls)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("folder", "image"),
    [("_work", "work"), ("a___b", "a-b"), ("UPPER_x.", "upper_x"), ("__", "worker")],
)
def test_name_of_a_build_is_one_that_images_can_have(
    tmp_path: Path, folder: str, image: str
) -> None:
    project = tmp_path / folder
    project.mkdir()
    (project / "Dockerfile").write_text("FROM x")
    (program,) = find_image_programs(settings(worker_build=project)).values()
    assert program.name == f"{image}:worker-rkllm"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("images", "changes", "message"),
    [
        ([" "], {}, "--image: the image's name is empty"),
        (["a", "x/a"], {}, "--image: a and x/a have the endpoint a; name one of them"),
        (["a b=w"], {}, "--image: the endpoint's ID 'a b' of w must consist of letters"),
        (["w"], {"worker_command": "python x.py"}, "WORKER_COMMAND has no effect on --image"),
        (["w"], {"worker_build": Path("/nowhere")}, "--build: there is no folder /nowhere"),
        (["w"], {"worker_build": Path("/etc")}, "--build: /etc has no Dockerfile"),
        (["w"], {"volume_dir": Path("/nowhere")}, "VOLUME_DIR): there is no folder /nowhere"),
        (["w"], {"worker_run_args": "--memory 1g --rm"}, "WORKER_RUN_ARGS: --rm cannot be used"),
        (["w"], {"worker_run_args": "--name=x"}, "WORKER_RUN_ARGS: --name=x cannot be used"),
        (["v", "w"], {"worker_build": Path("/")}, "--build: / has no Dockerfile"),
    ],
)
def test_unusable_settings_are_refused_in_one_sentence(
    images: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError) as raised:
        find_image_programs(settings(**changes), images)
    assert message in str(raised.value)


def test_one_folder_builds_one_image(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    with pytest.raises(SettingError, match="--build builds one image, and --image names 2"):
        find_image_programs(settings(worker_build=tmp_path), ["v", "w"])


@pytest.mark.parametrize(
    ("info", "changes", "network", "is_warned"),
    [
        ("Debian [name=seccomp]", {}, "host", False),
        ("Debian [name=seccomp]", {"worker_network": "bridge"}, "bridge", True),
        (
            "Debian [name=seccomp]",
            {"worker_network": "bridge", "host": "10.0.0.1"},
            "bridge",
            False,
        ),
        ("Debian [name=rootless]", {}, "host", True),
        ("Docker Desktop [name=seccomp]", {}, "bridge", False),
    ],
)
def test_network_that_does_not_reach_the_server_is_warned_about(
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    info: str,
    changes: dict[str, Any],
    network: str,
    is_warned: bool,
) -> None:
    engine.write("info", info)
    programs = find_image_programs(settings(**changes), ["w"])
    image = programs["w"].image
    assert image is not None
    assert image.network == network
    assert ("do not reach HOST=127.0.0.1" in caplog.text) is is_warned

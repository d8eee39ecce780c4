"""The choice between Docker and Podman, and the errors of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.containers.container_engine import (
    ContainerEngine,
    ContainerEngineError,
    find_container_engine,
)
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine

# As Docker 28 prints it.
NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?"
)


def add_program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def test_docker_comes_before_podman(path: Path) -> None:
    add_program(path, "docker", "exit 0")
    add_program(path, "podman", "exit 0")
    assert str(find_container_engine()) == "docker"
    assert str(find_container_engine("podman")) == "podman"


def test_podman_is_used_with_a_warning_where_docker_does_not_answer(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_program(path, "podman", "exit 0")
    assert str(find_container_engine()) == "podman"
    assert caplog.text == ""
    add_program(path, "docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    assert str(find_container_engine()) == "podman"
    assert f"docker does not answer ({NO_DAEMON}): podman is used" in caplog.text


def test_reasons_of_both_are_named_if_none_answers(path: Path) -> None:
    add_program(path, "docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    with pytest.raises(SettingError) as raised:
        find_container_engine()
    assert str(raised.value) == (
        f"--image needs Docker or Podman: docker does not answer ({NO_DAEMON}), "
        "and podman is not installed"
    )
    with pytest.raises(SettingError, match="CONTAINER_ENGINE=nerdctl: nerdctl is not installed"):
        find_container_engine("nerdctl")


def test_error_is_the_last_line_without_the_hint_at_help(path: Path) -> None:
    add_program(
        path,
        "docker",
        "echo 'docker: no such image' >&2; echo \"See 'docker run --help'.\" >&2; exit 125",
    )
    with pytest.raises(ContainerEngineError, match=r"^docker: no such image$"):
        ContainerEngine(str(path / "docker")).call("run", "x")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ("Docker Desktop [name=seccomp,profile=unconfined name=cgroupns]", (True, False)),
        ("Debian GNU/Linux 12 [name=seccomp,profile=default name=rootless]", (False, True)),
        ("Debian GNU/Linux 12 (bookworm) [name=seccomp,profile=default]", (False, False)),
    ],
)
def test_describe_host_recognises_machines_whose_network_is_not_this_ones(
    engine: FakeEngine, info: str, expected: tuple[bool, bool]
) -> None:
    engine.write("info", info)
    assert engine.describe_host() == expected


def test_remove_command_kills_at_once() -> None:
    docker, podman = ContainerEngine("/bin/docker"), ContainerEngine("/bin/podman")
    assert docker.remove_command("c") == ["/bin/docker", "rm", "--force", "--volumes", "c"]
    assert podman.remove_command("c")[-3:] == ["-t", "0", "c"]

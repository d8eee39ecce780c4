"""The folder of a user that the workers have as `/runpod-volume`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program import volume_mount
from emulator.autoscaling.program.volume import Volume, open_volume, resolve_volume
from tests.volumes import can_mount


def test_volume_is_mounted_before_the_command_or_its_problem_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    volume = open_volume(Path("data"))
    assert volume.folder == tmp_path / "data"
    if can_mount():
        assert volume.problem is None
        assert volume.command_prefix[-2:] == (volume_mount.__file__, str(tmp_path / "data"))
    else:
        assert volume.problem is not None
        assert volume.command_prefix == ()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing", "there is no folder missing"), ("file", "file is not a folder")],
)
def test_volume_must_be_a_folder_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SettingError) as caught:
        open_volume(Path(name))
    assert str(caught.value) == f"--volume (VOLUME_DIR): {problem}"
    assert not (tmp_path / "missing").exists()


def test_volume_may_be_written_as_for_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data", "a:b"):
        (tmp_path / name).mkdir()
    assert resolve_volume(Path("data:/runpod-volume")) == tmp_path / "data"
    # A folder of this name comes first.
    assert resolve_volume(Path("a:b")) == tmp_path / "a:b"
    with pytest.raises(SettingError, match="workers have the folder as /runpod-volume"):
        resolve_volume(Path("data:/models"))


@pytest.mark.parametrize(
    ("platform", "exists", "remedy"),
    [
        ("linux", False, "instead, run `sudo ln -s 'DIR/my data' TARGET` once, or start"),
        ("linux", True, "instead, run `sudo mount --bind 'DIR/my data' TARGET` once, or start"),
        ("darwin", False, "run the server in a container that is started with `-v DIR:TARGET`"),
    ],
)
def test_problem_has_the_reason_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, exists: bool, remedy: str
) -> None:
    refusing = tmp_path / "refusing.py"
    refusing.write_text("raise SystemExit('the folder cannot be mounted: refused')")
    folder = tmp_path / "my data"
    folder.mkdir()
    target = str(folder if exists else tmp_path / "none")
    monkeypatch.setattr(volume_mount, "__file__", str(refusing))
    monkeypatch.setattr("emulator.autoscaling.program.volume.VOLUME", target)
    monkeypatch.setattr(sys, "platform", platform)
    volume = open_volume(folder)
    assert volume.problem is not None
    assert volume.problem.startswith("the folder cannot be mounted: refused; ")
    quoted = remedy.replace("DIR/", f"{tmp_path}/").replace("TARGET", target)
    assert quoted in volume.problem
    assert volume.command_prefix == ()


def test_check_that_cannot_be_started_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    problem = open_volume(tmp_path).problem
    assert problem is not None
    assert "No such file or directory: '/no/such/python'" in problem


def test_volume_without_a_problem_has_a_prefix() -> None:
    assert Volume(Path("/data")).command_prefix[-1] == "/data"
    assert Volume(Path("/data"), "no").command_prefix == ()

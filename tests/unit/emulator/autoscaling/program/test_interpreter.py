"""The Python of a user's handler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program.interpreter import find_interpreter


def make_venv(folder: Path) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return str(folder / "bin" / "python")


def test_find_interpreter_prefers_the_active_environment(tmp_path: Path) -> None:
    make_venv(tmp_path / ".venv")
    active = make_venv(tmp_path / "active")
    interpreter = find_interpreter(
        tmp_path / "handler.py", environment={"VIRTUAL_ENV": str(tmp_path / "active")}
    )
    assert str(interpreter) == f"{active} (the active virtual environment)"


@pytest.mark.parametrize("name", [".venv", "venv"])
@pytest.mark.parametrize("file", ["handler.py", "src/handler.py"])
def test_find_interpreter_finds_the_environment_of_the_project(
    tmp_path: Path, name: str, file: str
) -> None:
    python = make_venv(tmp_path / name)
    # An active environment that is this server's own was not made for the handler.
    interpreter = find_interpreter(tmp_path / file, environment={"VIRTUAL_ENV": sys.prefix})
    assert str(interpreter) == f"{python} (the virtual environment {name} of the handler)"


def test_find_interpreter_falls_back_to_the_servers_own(tmp_path: Path) -> None:
    # A folder of that name without a Python is no environment.
    (tmp_path / ".venv").mkdir()
    interpreter = find_interpreter(tmp_path / "handler.py", environment={"VIRTUAL_ENV": "/no/such"})
    assert str(interpreter) == f"{sys.executable} (the server's own)"


def test_find_interpreter_takes_a_chosen_program_or_environment(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "chosen")
    for chosen in (python, str(tmp_path / "chosen")):
        assert find_interpreter(tmp_path / "handler.py", chosen, {}).path == python


def test_find_interpreter_explains_a_chosen_program_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    for chosen, problem in (
        ("/no/such/python", "does not exist"),
        (str(tmp_path / "text"), "cannot be run"),
        (str(tmp_path), "is not a virtual environment"),
    ):
        with pytest.raises(SettingError, match=problem):
            find_interpreter(tmp_path / "handler.py", chosen, {})

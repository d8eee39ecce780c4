"""The log messages for a missing package, and the commands that install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.missing_module import explain_missing_module

OUTPUT = ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'torch.nn'"]
OWN = Interpreter("/opt/server/python", "the server's own")
VENV = Interpreter("/p/.venv/bin/python", "the virtual environment .venv of the handler")


def test_handler_gets_an_environment_of_its_own(tmp_path: Path) -> None:
    advice = explain_missing_module(OUTPUT, tmp_path / "handler.py", OWN)
    assert advice == (
        f"it ran with /opt/server/python (the server's own); run `cd {tmp_path} && python3 -m venv "
        ".venv && .venv/bin/python -m pip install runpod torch`"
    )


@pytest.mark.parametrize("name", ["requirements.txt", "builder/requirements.txt"])
def test_packages_of_the_project_are_installed_in_its_environment(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    advice = explain_missing_module(OUTPUT, tmp_path / "src" / "handler.py", VENV)
    assert advice is not None
    assert advice.endswith(f"`cd {tmp_path} && {VENV.path} -m pip install -r {name}`")


def test_environment_without_the_sdk_gets_the_command_to_install_it(tmp_path: Path) -> None:
    output = ["ModuleNotFoundError: No module named 'runpod'"]
    advice = explain_missing_module(output, tmp_path / "handler.py", VENV)
    assert advice is not None
    assert advice.endswith(f"{VENV.path} -m pip install runpod`")
    (tmp_path / "requirements.txt").touch()
    advice = explain_missing_module(output, tmp_path / "handler.py", VENV)
    assert advice is not None
    assert advice.endswith(f"{VENV.path} -m pip install runpod -r requirements.txt`")


@pytest.mark.parametrize("line", ["ValueError: no", "ImportError: cannot import name 'x'", ""])
def test_other_errors_need_no_package(tmp_path: Path, line: str) -> None:
    assert explain_missing_module([line], tmp_path / "handler.py", OWN) is None

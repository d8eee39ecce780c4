"""The program that the autoscaler starts as a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import emulator.autoscaling.program.worker_program
from common.setting_error import SettingError
from emulator.autoscaling.program.interpreter import Interpreter, find_interpreter
from emulator.autoscaling.program.worker_program import (
    command_program,
    handler_program,
    missing_sdk,
)
from tests.integration.emulator.processes import ROOT


def test_command_program_without_a_command_is_this_packages_worker() -> None:
    own = (sys.executable, "-P", str(ROOT / "handler" / "__main__.py"))
    assert command_program("").command == command_program(" ").command == own
    assert command_program("").folder is None
    assert command_program("").variables() == {}


def test_command_program_replaces_python_by_the_interpreter_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    program = command_program("python 'my handler.py' --x")
    assert program.command == (sys.executable, "my handler.py", "--x")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.symlink_to(sys.executable)
    assert command_program("python3 handler.py").command[0] == str(python)
    assert command_program("python handler.py", sys.executable).command[0] == sys.executable


@pytest.mark.parametrize(
    ("command_line", "command"),
    [
        ("", ("/opt/python", "-u", "/p/handler.py")),
        ("python -m debugpy 'my handler.py'", ("/opt/python", "-m", "debugpy", "my handler.py")),
        ("docker run my-worker", ("docker", "run", "my-worker")),
    ],
)
def test_handler_program_runs_a_command_in_the_folder_of_the_handler(
    command_line: str, command: tuple[str, ...]
) -> None:
    file = Path("/p/handler.py")
    program = handler_program(file, Interpreter("/opt/python", "chosen"), command_line)
    assert (program.command, program.file, program.folder) == (command, file, Path("/p"))


def test_command_program_keeps_other_programs() -> None:
    program = command_program("/opt/run me")
    assert (program.command, program.python) == (("/opt/run", "me"), None)


def test_command_program_refuses_open_quotes_and_a_missing_python() -> None:
    with pytest.raises(ValueError, match="quotation"):
        command_program("python 'x")
    with pytest.raises(SettingError, match="does not exist"):
        command_program("python x.py", "/no/such/python")


def test_handler_program_runs_in_the_folder_of_the_file_with_its_env_file(tmp_path: Path) -> None:
    file = tmp_path / "handler.py"
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    assert program.command == ("/opt/python", "-u", str(file))
    assert program.folder == tmp_path
    assert program.variables() == {}
    (tmp_path / ".env").write_text("TOKEN='a b'\nEMPTY\n# no variable\n")
    assert program.variables() == {"TOKEN": "a b"}


def test_handler_program_reads_the_env_file_of_the_project_before_the_handlers_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "src").mkdir()
    program = handler_program(tmp_path / "src" / "handler.py", Interpreter("python", "chosen"))
    (tmp_path / ".env").write_text("TOKEN=project\nREGION=eu\n")
    (tmp_path / "src" / ".env").write_text("TOKEN=own\n")
    assert program.variables() == {"TOKEN": "own", "REGION": "eu"}


def test_missing_sdk_checks_only_this_packages_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_sdk("") is None
    monkeypatch.setattr(emulator.autoscaling.program.worker_program, "find_spec", lambda name: None)
    assert missing_sdk("python handler.py") is None
    assert str(missing_sdk("")).startswith("WORKERS: ")


def test_program_uses_a_virtual_environment_that_was_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    file = tmp_path / "handler.py"
    program = handler_program(file, find_interpreter(file))
    assert program.with_current_python().command == (sys.executable, "-u", str(file))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    python.symlink_to(sys.executable)
    assert program.with_current_python().command == (str(python), "-u", str(file))
    script = handler_program(file, find_interpreter(file), "bash start.sh")
    assert script.with_current_python().command == ("bash", "start.sh")
    chosen = handler_program(file, find_interpreter(file, sys.executable))
    assert chosen.with_current_python() == chosen


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_dotenv_that_is_not_utf_8_is_named(tmp_path: Path, encoding: str) -> None:
    program = handler_program(tmp_path / "handler.py", Interpreter("/opt/python", "chosen"))
    file = tmp_path / ".env"
    file.write_bytes("CITY=Zürich\n".encode("utf-8-sig"))
    assert program.variables() == {"CITY": "Zürich"}
    file.write_bytes("CITY=Zürich\n".encode(encoding))
    with pytest.raises(ValueError, match=r"\.env is not UTF-8: invalid .* byte \(byte \d+\)"):
        program.variables()


def test_nul_in_a_dotenv_is_named(tmp_path: Path) -> None:
    program = handler_program(tmp_path / "handler.py", Interpreter("/opt/python", "chosen"))
    (tmp_path / ".env").write_bytes(b'TOKEN="a\0b"\n')
    with pytest.raises(ValueError, match=r"\.env has a NUL character .* the variable 'TOKEN'"):
        program.variables()

"""The program of a worker: a command, its folder and the variables of its .env."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from dotenv import dotenv_values

from common.setting_error import SettingError
from emulator.autoscaling.containers.worker_image import WorkerImage
from emulator.autoscaling.program.handler_file import list_folders
from emulator.autoscaling.program.interpreter import Interpreter, find_interpreter
from emulator.autoscaling.program.volume import Volume
from handler.settings.worker_settings import NO_SDK

# As a file and with -P: in the working folder, `-m handler` would find a handler.py of the user's.
_OWN_HANDLER = Path(__file__).resolve().parents[3] / "handler" / "__main__.py"
_PYTHON_NAMES = ("python", "python3")
_OWN_WORKER = (sys.executable, "-P", str(_OWN_HANDLER))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgram:
    """The command of the workers; with a handler's `file`, its folder is the working folder.

    `python` is the interpreter that was chosen for it; None if the command names its own program.
    `extra_variables` come before those of the handler's .env. The workers have the `volume`
    as `/runpod-volume`. With an `image` they are its containers, which have their own command.
    """

    command: tuple[str, ...]
    file: Path | None = None
    python: Interpreter | None = None
    extra_variables: Mapping[str, str] = field(default_factory=dict)
    volume: Volume | None = None
    image: WorkerImage | None = None

    @property
    def name(self) -> str | None:
        """What the user calls this program of their own; None for a command."""
        if self.image is not None:
            return self.image.reference
        return None if self.file is None else self.file.name

    @property
    def folders(self) -> Sequence[Path]:
        """The folders with the `.env` and the tests of a program with a name, the nearest first."""
        if self.image is not None:
            return self.image.folders
        return () if self.file is None else list_folders(self.file)

    @property
    def folder(self) -> Path | None:
        """The folder to run in; None for the server's own."""
        return None if self.file is None else self.file.parent

    @property
    def is_own_worker(self) -> bool:
        """Whether it is this package's worker, and not a user's handler."""
        return self.image is None and self.command == _OWN_WORKER

    def with_current_python(self) -> WorkerProgram:
        """Return the program with the handler's interpreter of now: a `.venv` may be new."""
        if self.file is None or self.python is None or self.python.is_chosen:
            return self
        python = find_interpreter(self.file)
        command = self.command
        if command[0] == self.python.path:
            command = (python.path, *command[1:])
        return replace(self, command=command, python=python)

    def variables(self) -> Mapping[str, str]:
        """Return the variables for a worker; the handler's .env is read again for each worker.

        The .env in the file's folder comes before the project's.

        Raises:
            OSError, ValueError: a .env cannot be read.
        """
        values: dict[str, str | None] = {}
        for folder in reversed(self.folders):
            values |= _read_variables(folder / ".env")
        set_values = {name: value for name, value in values.items() if value is not None}
        return set_values | dict(self.extra_variables)


def _read_variables(file: Path) -> dict[str, str | None]:
    try:
        # With the mark that editors on Windows put before UTF-8.
        values = dotenv_values(file, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error.reason} (byte {error.start})") from None
    for name, value in values.items():
        # uvloop would cut the value there.
        if "\0" in name or "\0" in (value or ""):
            raise ValueError(f"{file} has a NUL character in a line with the variable {name!r}")
    return values


def handler_program(file: Path, interpreter: Interpreter, command_line: str = "") -> WorkerProgram:
    """Return the program that runs a user's handler.

    Without a command line, it is `python -u FILE`, as in RunPod's images. `python` as the first
    word of a command line stands for the interpreter.

    Raises:
        ValueError: the quotes of the command line do not match.
    """
    words = shlex.split(command_line) or ["python", "-u", str(file)]
    if words[0] in _PYTHON_NAMES:
        words[0] = interpreter.path
    command = tuple(words)
    return WorkerProgram(command=command, file=file, python=interpreter)


def handler_programs(
    files: Mapping[str, Path], python: str | None, command_line: str
) -> dict[str, WorkerProgram]:
    """Return the programs of the handlers, by their endpoints.

    Raises:
        SettingError: there is no such Python, or one command line for several handlers.
        ValueError: the quotes of the command line do not match.
    """
    if command_line and len(files) > 1:
        raise SettingError(
            f"WORKER_COMMAND starts the workers of one handler, and there are {len(files)}"
        )
    return {
        endpoint: handler_program(file, find_interpreter(file, python), command_line)
        for endpoint, file in files.items()
    }


def command_program(command_line: str, python: str | None = None) -> WorkerProgram:
    """Return the program of a command line; an empty one is this package's worker.

    `python` as the first word stands for the interpreter that fits the script: see
    `find_interpreter`. The one in PATH may be another one, or may not exist.

    Raises:
        ValueError: the quotes of the command line do not match.
        SettingError: the program `python` does not exist.
    """
    command = shlex.split(command_line)
    if not command:
        return WorkerProgram(command=_OWN_WORKER)
    if command[0] not in _PYTHON_NAMES:
        return WorkerProgram(command=tuple(command))
    script = next((each for each in command[1:] if each.endswith(".py")), "handler.py")
    interpreter = find_interpreter(Path(script).absolute(), python)
    return WorkerProgram(command=(interpreter.path, *command[1:]), python=interpreter)


def missing_sdk(command: str) -> str | None:
    """Return why this package's worker cannot be started; None if it can.

    The user's own command may use another interpreter, so it is not checked.
    """
    if shlex.split(command) or find_spec("runpod") is not None:
        return None
    return f"WORKERS: {NO_SDK}"

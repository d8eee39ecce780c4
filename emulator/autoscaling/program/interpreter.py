"""Find the Python that a user's handler runs with: the one that has the handler's packages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.setting_error import SettingError

_VENV_NAMES = (".venv", "venv")
_CHOSEN = "chosen with --python or WORKER_PYTHON"
_OWN = "the server's own"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python program, and why it was chosen, for the log at the start."""

    path: str
    source: str

    @property
    def is_chosen(self) -> bool:
        """Whether the user has named it."""
        return self.source.startswith("chosen")

    @property
    def is_own(self) -> bool:
        """Whether it is the Python of this server, which was not made for the handler."""
        return self.source == _OWN

    def __str__(self) -> str:
        return f"{self.path} ({self.source})"


def find_interpreter(
    file: Path, chosen: str | None = None, environment: Mapping[str, str] = os.environ
) -> Interpreter:
    """Return the interpreter of a handler's file.

    In this order: the `chosen` one, an active virtual environment, one in the folder of the file or
    the folder above it, and the interpreter of this process. An active environment that is this
    server's own comes last, because it was not made for the handler.

    Raises:
        SettingError: the chosen program does not exist or cannot be run.
    """
    if chosen is not None:
        return Interpreter(_find_chosen(chosen), _CHOSEN)
    active = environment.get("VIRTUAL_ENV")
    if active and Path(active).resolve() != Path(sys.prefix).resolve():
        python = _python_of(Path(active))
        if python is not None:
            return Interpreter(python, "the active virtual environment")
    for folder in _neighbours(file):
        python = _python_of(folder)
        if python is not None:
            return Interpreter(python, f"the virtual environment {folder.name} of the handler")
    return Interpreter(sys.executable, _OWN)


def _find_chosen(chosen: str) -> str:
    path = Path(chosen).expanduser()
    if path.is_dir():
        python = _python_of(path)
        if python is None:
            raise SettingError(f"--python: the folder {path} is not a virtual environment")
        return python
    # A name without a folder is looked for in PATH, as a shell does.
    program = shutil.which(str(path))
    if program is None:
        problem = "cannot be run" if path.exists() else "does not exist"
        raise SettingError(f"--python: the program {chosen} {problem}")
    # Not resolved: the link's own path is what tells Python its virtual environment.
    return str(Path(program).absolute())


def _neighbours(file: Path) -> Iterator[Path]:
    for folder in (file.parent, file.parent.parent):
        for name in _VENV_NAMES:
            yield folder / name


def _python_of(folder: Path) -> str | None:
    python = folder.absolute() / "bin" / "python"
    is_venv = (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir()
    return str(python) if is_venv and os.access(python, os.X_OK) else None

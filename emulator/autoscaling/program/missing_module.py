"""How to install a package that a user's handler does not find."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from emulator.autoscaling.program.handler_file import list_folders
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.worker_exit import last_printed_line

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)[^']*'")
# RunPod's templates have it in the second.
_REQUIREMENTS = ("requirements.txt", "builder/requirements.txt")


def explain_missing_module(
    output: Sequence[str], file: Path, python: Interpreter | None
) -> str | None:
    """Return which Python lacks a module, and the commands that install it; None if none does.

    The server's own Python is not for packages of handlers, so a virtual environment is made.
    """
    match = _MISSING.match(last_printed_line(output))
    if match is None or python is None:
        return None
    folder = list_folders(file)[-1]
    names = [name for name in _REQUIREMENTS if (folder / name).is_file()]
    packages = [f"-r {names[0]}" if names else match[1]]
    if "runpod" not in packages and (python.is_own or match[1] == "runpod"):
        packages.insert(0, "runpod")
    program = ".venv/bin/python" if python.is_own else shlex.quote(python.path)
    install = f"{program} -m pip install {' '.join(packages)}"
    if python.is_own:
        install = f"python3 -m venv .venv && {install}"
    return f"it ran with {python}; run `cd {shlex.quote(str(folder))} && {install}`"

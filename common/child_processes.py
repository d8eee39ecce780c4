"""How this project starts processes of its own, and how their ends are described."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RUN_MODULE = str(Path(__file__).resolve().with_name("run_module.py"))

# Set in a process that is started for one engine, or for its examination.
OWN_PROCESS_VARIABLE = "ENGINE_HAS_OWN_PROCESS"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules in this Python.

    The module finds our packages, also those of an installation, which are on no other process's
    path. With -P the working folder is not on the path: its packages may have the names of ours.
    """
    return [sys.executable, "-P", _RUN_MODULE, module, *arguments]


def start_module(
    module: str, *arguments: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start one of our modules; `options` are those of `Popen`. Raises OSError."""
    return subprocess.Popen(
        module_command(module, *arguments), env={**os.environ, **(variables or {})}, **options
    )


def describe_exit(code: int) -> str:
    """Return how a process ended, as a predicate: "was killed by SIGSEGV"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

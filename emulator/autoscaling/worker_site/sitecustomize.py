"""Runs at the start of a launched worker's Python, whatever its version and its packages are.

SDK 1.7 to 1.9 keep the running jobs in a file in the worker's current folder. After a crash the
next worker would count itself full and take no jobs, and two workers of one folder would take each
other's jobs for their own. So each launched worker keeps the file in a folder of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import stat
import sys
from typing import Any

_MODULE = "runpod.serverless.modules.worker_state"
_FOLDER = os.environ.get("WORKER_RKLLM_STATE_DIR", "")
_HERE = os.path.dirname(os.path.abspath(__file__))


class _StateFinder(importlib.abc.MetaPathFinder):
    """Finds the module as usual, and changes the folder when it has been executed."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            jobs: Any = getattr(module, "JobsProgress", None)
            if hasattr(jobs, "_STATE_FILE") and _make_folder():
                jobs._STATE_DIR = _FOLDER
                jobs._STATE_FILE = os.path.join(_FOLDER, ".runpod_jobs.pkl")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _make_folder() -> bool:
    """Make the folder; return whether it belongs to this user, because the file is a program."""
    try:
        os.mkdir(_FOLDER, 0o700)
    except FileExistsError:
        # A process of this worker has made it.
        entry = os.lstat(_FOLDER)
        return stat.S_ISDIR(entry.st_mode) and entry.st_uid == os.getuid()
    except OSError:
        return False
    return True


def _run_next() -> None:
    """Run the file of this name that Python would have run without this one."""
    folders = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _FOLDER:
    sys.meta_path.insert(0, _StateFinder())
_run_next()

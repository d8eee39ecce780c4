"""Runs at the start of a launched worker's Python, whatever its version and its packages are.

SDK 1.7 to 1.9 keep the running jobs in a file in the worker's current folder. After a crash the
next worker would count itself full and take no jobs, and two workers of one folder would take each
other's jobs for their own. So each launched worker keeps the file in a folder of its own.

SDK 1.6 does not handle SIGTERM, which would end a worker in the middle of a job. So such a worker
ends after its jobs, as later versions do. Its client calls the paid cloud whatever
RUNPOD_ENDPOINT_BASE_URL says, so that address is set in the module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_FOLDER = os.environ.get("WORKER_RKLLM_STATE_DIR", "")
_POLL_INTERVAL_S = 0.01
_HERE = os.path.dirname(os.path.abspath(__file__))


class _SdkFinder(importlib.abc.MetaPathFinder):
    """Finds modules of the SDK as usual, and changes each when it has been executed."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        # Called with the module of this name.
        self._changes = changes

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        # Removed, because the search below asks this finder, too.
        change = self._changes.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _set_endpoint_url(module: Any) -> None:
    """Let the client of SDK 1.6 call the server that later versions call."""
    url = os.environ.get("RUNPOD_ENDPOINT_BASE_URL")
    if url and hasattr(module, "endpoint_url_base"):
        module.endpoint_url_base = url


def _change_state(module: Any) -> None:
    jobs: Any = getattr(module, "JobsProgress", None)
    if hasattr(jobs, "_STATE_FILE") and _make_folder():
        jobs._STATE_DIR = _FOLDER
        jobs._STATE_FILE = os.path.join(_FOLDER, ".runpod_jobs.pkl")
    if hasattr(module, "Jobs"):  # SDK 1.6
        _handle_sigterm(module.Jobs())


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


def _handle_sigterm(jobs: Any) -> None:
    """Let the first SIGTERM end this process after its jobs, unless the handler has its own way."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    worker_pid = os.getpid()

    def end_after_jobs() -> None:
        # A forked child has a copy of the jobs, which never end there.
        while os.getpid() == worker_pid and jobs.get_job_count():
            time.sleep(_POLL_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def handle(number, frame):  # type: ignore[no-untyped-def]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=end_after_jobs, daemon=True).start()

    signal.signal(signal.SIGTERM, handle)


def _run_next() -> None:
    """Run the file of this name that Python would have run without this one."""
    folders = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _FOLDER:
    changes: dict[str, Callable[[Any], None]] = {
        "runpod": _set_endpoint_url,
        "runpod.serverless.modules.worker_state": _change_state,
    }
    sys.meta_path.insert(0, _SdkFinder(changes))
_run_next()

"""One server per NPU: locks that all engine processes of a server share, and no other process has.

Two processes of two servers on one NPU have crashed a kernel. The locks are flocks, which belong to
an open file and not to a process. The server opens the files once and passes the descriptors to
each engine process that it starts, so its copies and restarted processes share the locks, and the
kernel releases them when the last of these processes has ended, however it ended.

Two files are locked where both exist. The device's node is one file for all processes outside
containers. Docker creates a node of its own in each container, which others cannot see, so the
second is a file in /run/lock, which a container can share with the machine.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.backends.rkllm.board.nodes import find_npu_node
from engine.errors import IS_TRANSIENT, ModelLoadFailed

logger = logging.getLogger(__name__)

LOCK_NAME = "rknpu.lock"
_ROOT = Path("/")
LOCK_FOLDERS = ("run/lock", "var/lock")
# Not blocking, because the name may be that of a pipe.
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o644

# The descriptors by device, open for the life of this process: another open file of this process
# would be refused the lock that this one holds.
_descriptors: dict[Path, tuple[int, ...]] = {}
_descriptors_lock = threading.Lock()


def find_device(root: Path = _ROOT) -> Path | None:
    """Return the node of the NPU, or None on a machine without an NPU."""
    node = find_npu_node(root)
    return node if node is not None and node.exists() else None


def open_device(path: str | None = None, root: Path = _ROOT) -> tuple[int, ...]:
    """Open and lock the files that stand for the NPU; return their descriptors.

    Returns the same descriptors each time, and none on a machine without an NPU. A lock that
    another server holds is left to `require_device`, which reports it. `path` is a file to lock
    instead of the NPU's.
    """
    device = find_device(root) if path is None else Path(path)
    if device is None:
        return ()
    with _descriptors_lock:
        if device not in _descriptors:
            nodes = [_open(device)] if path is None else [_open_or_create(device)]
            files = [_open_lock_file(root)] if path is None else []
            _descriptors[device] = tuple(each for each in (*nodes, *files) if each is not None)
            if not _descriptors[device]:
                logger.warning("%s cannot be locked against other servers on this machine", device)
        # Here, so that the lock names the server and not one of its engine processes.
        _try_lock(_descriptors[device])
        return _descriptors[device]


def require_device(descriptors: Sequence[int]) -> None:
    """Lock the device unless this server has locked it. Raises ModelLoadFailed if another has."""
    held = _try_lock(descriptors)
    if held is None:
        return
    pid = _find_holder(held)
    holder = "another process or container" if pid is None else f"process {pid}"
    raise ModelLoadFailed(
        f"the NPU ({os.readlink(f'/proc/self/fd/{held}')}) is in use by {holder}, and two servers "
        "on one NPU can crash the kernel: stop the other one, or set RKLLM_DEVICE_LOCK=off to run "
        "both",
        # A server that is being replaced may still be unloading its model.
        **{IS_TRANSIENT: True},
    )


def _try_lock(descriptors: Sequence[int]) -> int | None:
    """Lock the files in order; return the first one that another server has locked, or None."""
    for descriptor in descriptors:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return descriptor
        except OSError as error:
            # Some network file systems have no locks.
            logger.warning("the NPU cannot be locked against other servers: %s", error.strerror)
    return None


def _open(path: Path) -> int | None:
    try:
        return os.open(path, _OPEN_FLAGS)
    except OSError:
        return None


def _open_or_create(path: Path) -> int | None:
    # Without O_CREAT first: in a folder that all may write to, the kernel refuses it for a file of
    # another user.
    descriptor = _open(path)
    if descriptor is not None:
        return descriptor
    try:
        descriptor = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    except FileExistsError:
        return _open(path)
    except OSError:
        return None
    # The umask may have denied other users to open it.
    os.fchmod(descriptor, _FILE_MODE)
    return descriptor


def _open_lock_file(root: Path) -> int | None:
    """Open the lock file in the first folder that allows it; None if none does."""
    for folder in (*(root / each for each in LOCK_FOLDERS), Path(tempfile.gettempdir())):
        if folder.is_dir() and (descriptor := _open_or_create(folder / LOCK_NAME)) is not None:
            return descriptor
    return None


def _find_holder(descriptor: int) -> int | None:
    """Return the process that has locked a file; None if it cannot be seen from here.

    It may also have ended, and have passed the lock on to a process that it started.
    """
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids = (pid for pid, file in _read_flocks() if file == device)
    return next((pid for pid in pids if Path(f"/proc/{pid}").exists()), None)


def _read_flocks() -> Iterator[tuple[int, str]]:
    """Yield the process and the file of each flock; see proc_locks(5)."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        # A line of a process that waits for a lock has an arrow in front of the kind.
        match line.split():
            case [_, "FLOCK", _, _, pid, file, *_] if int(pid) > 0:
                yield int(pid), file

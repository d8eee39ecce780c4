"""Temporary folders that the next start removes if their process was killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Self

_PREFIX = "worker-rkllm-tmp-"
# Only folders with exactly such a name are ever removed.
_NAME = re.compile(re.escape(_PREFIX) + "[0-9a-f]{8}")
_PRIVATE_MODE = 0o700
# Another process may remove a folder before its owner has locked it: then it is created again.
_MAX_ATTEMPTS = 10
_RETRY_DELAY_S = 0.01


class ScratchFolder:
    """A private folder below the system's folder for temporary files, locked by its owner.

    The owner holds a lock on the folder itself for as long as it lives. The kernel releases the
    lock when the process ends, however it ends. So any later process can tell an abandoned folder
    from one in use, also when the two processes are in different containers that share the folder
    for temporary files and cannot see each other's process ids.

    The folder is created by `open`, or on entering the context.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"{_PREFIX}{secrets.token_hex(4)}")
        self._finalizer: weakref.finalize[[Path, int], ScratchFolder] | None = None

    @property
    def name(self) -> str:
        """The folder's path as a string."""
        return str(self.path)

    def open(self) -> Path:
        """Create and lock the folder, after removing abandoned ones. Raises OSError."""
        remove_abandoned(self.path.parent)
        for _ in range(_MAX_ATTEMPTS):
            fd = _create(self.path)
            if fd is not None:
                self._finalizer = weakref.finalize(self, _remove, self.path, fd)
                return self.path
            time.sleep(_RETRY_DELAY_S)
        raise FileExistsError(f"the temporary folder {self.path} is in use by another process")

    def close(self) -> None:
        """Remove the folder and everything in it."""
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the scratch folders of this user whose owners have ended.

    A folder with another kind of name, of another user, or behind a symbolic link is left alone.
    """
    try:
        folder = parent or Path(tempfile.gettempdir())
    except FileNotFoundError:
        # `gettempdir` needs a writable folder, and a full disk has no such folder.
        return
    for path in folder.glob(f"{_PREFIX}*"):
        if not _NAME.fullmatch(path.name):
            continue
        fd = _lock_abandoned(path)
        if fd is not None:
            _remove(path, fd)


def _create(path: Path) -> int | None:
    """Create and lock a folder; None if another process has the name or the lock."""
    try:
        path.mkdir(mode=_PRIVATE_MODE)
        # The umask may have removed permissions from the mode.
        path.chmod(_PRIVATE_MODE)
        fd = _open(path)
    except (FileExistsError, FileNotFoundError):
        if not path.parent.is_dir():
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        # The file system has no locks on folders: usable, but no later process may remove it.
        return fd
    if _is_at(fd, path):
        return fd
    os.close(fd)
    return None


def _lock_abandoned(path: Path) -> int | None:
    """Lock an abandoned folder of this user and return its descriptor; None otherwise."""
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid == os.geteuid() and _is_at(fd, path):
            return fd
    except OSError:
        # The folder is in use, or the file system has no locks on folders.
        pass
    os.close(fd)
    return None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_at(fd: int, path: Path) -> bool:
    """Return whether the path still is the open folder: another process may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path, fd: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(fd)

"""The file of the job database: identity, locks, and detection of a replaced file.

A path does not identify a database: symbolic links, hard links, bind mounts and `..` give one file
several paths, and two servers that use one file lose acknowledged jobs. So the file itself is
locked.

There are two locks. The server locks the file `JOB_DB.lock` until it ends, so that a second server
is refused at once, even from another container. The store process locks the database. It may
outlive a killed server by a moment, so the next store process waits for this lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from common.private_files import (
    FILE_MODE,
    make_private,
    open_private,
    open_regular,
    sync_folder,
)
from jobs.errors import StoreUnusable

_LOCK_SUFFIX = ".lock"
_WAL_SUFFIX = "-wal"
_SHM_SUFFIX = "-shm"
_LOCK_POLL_S = 0.05
# Errors of a full disk, an exceeded quota, and a file size limit.
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A server writes its process id into the lock file, so that a second server can report it.
_MAX_PID_BYTES = 20

MOVED_MESSAGE = (
    "the job database {name} was removed or replaced while the server was running: new jobs are "
    "refused until its files are back or the server is restarted"
)


class DatabaseInUse(OSError):
    """Another process uses the database."""


def real_path(path: Path) -> Path:
    """Return the path without symbolic links and `..`, even of a path below /proc/self/fd.

    SQLite keeps its log beside the path that it opens, so every server must open the same one.
    """
    return Path(os.path.realpath(path))


def lock_path(path: Path) -> Path:
    """Return the path of the file that a server locks while it uses a database."""
    return path.with_name(path.name + _LOCK_SUFFIX)


def check_hard_links(path: Path) -> str | None:
    """Return why a database with several hard links cannot be opened by this name, or None.

    SQLite's log is beside only one of the names. Under another name, acknowledged jobs in the log
    would be missing, and the log would later be applied to a changed database. A lock file beside
    a name shows that servers have used the database under that name.
    """
    try:
        links = path.stat().st_nlink
    except OSError:
        return None
    if links < 2 or lock_path(path).exists():
        return None
    return (
        f"it is a hard link, and its log of recent jobs is beside another of its {links} names: "
        "use that name, or remove it after the server has been stopped"
    )


class ServerLock:
    """The lock of a server on its database; the kernel releases it when the server ends."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = lock_path(path)
        self._fd = -1

    def acquire(self) -> None:
        """Acquire the lock; no-op if this object already holds it.

        Raises StoreUnusable if the database must be opened under another of its names,
        DatabaseInUse, and OSError.
        """
        if self._fd >= 0:
            return
        if (reason := check_hard_links(self._database)) is not None:
            raise StoreUnusable(f"the job database {self._database.name} is refused: {reason}")
        try:
            fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                # The lock on the database itself must suffice.
                return
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DatabaseInUse("another server uses it") from None
        self._fd = fd
        # On a full disk the process id is missing; the lock itself suffices.
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.write(fd, b"%d" % os.getpid())

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DatabaseFile:
    """The database file that a store process has locked.

    The descriptor stays open until the process ends: closing it would release the locks that SQLite
    has on the file, because POSIX locks belong to a process and not to a descriptor.

    An existing file keeps its mode until `make_private`, because it may belong to another program.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.inode = os.fstat(fd).st_ino
        self._wal = path.with_name(path.name + _WAL_SUFFIX)
        self._wal_inode: int | None = None

    @classmethod
    def lock(cls, path: Path, wait_s: float, inode: int | None) -> Self:
        """Open or create a database and lock it; wait until another process releases it.

        With an `inode`, only the file with this inode is accepted: a store process that replaces a
        crashed one must not continue with another database, or create an empty one.

        Raises:
            StoreUnusable: the file is another one.
            DatabaseInUse: another process has held the lock for longer than `wait_s`.
            OSError: it cannot be opened.
        """
        deadline = time.monotonic() + wait_s
        while True:
            is_new = not path.exists()
            if inode is not None and (is_new or path.stat().st_ino != inode):
                raise StoreUnusable(MOVED_MESSAGE.format(name=path.name))
            fd = (open_private if is_new else open_regular)(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() > deadline:
                    raise DatabaseInUse("another server uses it") from None
                # flock has no timeout.
                time.sleep(_LOCK_POLL_S)
                continue
            if os.fstat(fd).st_ino == _inode(path):
                break
            # The file was replaced meanwhile, and SQLite would open the new one.
            os.close(fd)
            if time.monotonic() > deadline:
                raise StoreUnusable(MOVED_MESSAGE.format(name=path.name))
        if is_new:
            # SQLite syncs the names of its logs, but not the name of an existing database.
            sync_folder(path.parent)
        return cls(path, fd)

    def make_private(self) -> None:
        """Set the private mode on the database and its log files. Raises OSError."""
        make_private(self._fd, FILE_MODE)
        for suffix in (_WAL_SUFFIX, _SHM_SUFFIX):
            with suppress(FileNotFoundError):
                make_private(self.path.with_name(self.path.name + suffix), FILE_MODE)

    def has_moved(self) -> bool:
        """Return whether the database or its log was removed or replaced.

        Compares inodes only, as SQLite does: on some file systems the device number changes.
        """
        if _inode(self.path) != self.inode:
            return True
        wal_inode = _inode(self._wal)
        if self._wal_inode is None:
            self._wal_inode = wal_inode
        return wal_inode != self._wal_inode


def open_pinned(path: Path, inode: int) -> int:
    """Open the database that a store process has open, and return the descriptor.

    The inode of an open file is not reused. So a replaced database is detected by its inode even if
    the store process has ended in between. Raises StoreUnusable if the database was already
    replaced, and OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        raise StoreUnusable(MOVED_MESSAGE.format(name=path.name))
    return fd


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def find_user(path: Path) -> tuple[bool, int | None]:
    """Return whether a server uses a database, and the server's process id if it is known.

    Does not create or change files. Raises OSError.
    """
    lock = lock_path(path)
    if is_locked(lock):
        return True, _read_pid(lock)
    # Servers create a lock file beside the path that they use. If there is none, a lock on the
    # database belongs to a server that uses another path. If there is one, it may belong to the
    # store process of a killed server, which ends soon.
    return not lock.exists() and is_locked(path), None


def is_locked(path: Path) -> bool:
    """Return whether a process has an exclusive lock on a file; False if it does not exist."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        # Closing the file releases the lock.
        os.close(fd)
    return False


def _read_pid(lock: Path) -> int | None:
    """Return the process id in a lock file if such a process runs, else None."""
    try:
        pid = int(lock.read_bytes()[:_MAX_PID_BYTES])
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return None if state == "Z" else pid

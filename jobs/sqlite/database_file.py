"""The file of the job database: which one it is, who may use it, whether it is still there.

A path is not enough to tell one database from another: symbolic links, hard links, bind mounts and
`..` give one file several paths, and two servers on one file lose jobs that were acknowledged. So
the lock is on the file itself.

Two locks are involved. The server holds the one on the file `JOB_DB.lock` for as long as it lives,
so that a second server is refused at once, in whatever container it runs. The store process holds
the one on the database. It can outlive a killed server by a moment, and its successor waits for it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from jobs.errors import StoreUnusable
from jobs.sqlite.private_files import (
    FILE_MODE,
    make_private,
    open_private,
    open_regular,
    sync_folder,
)

_LOCK_SUFFIX = ".lock"
_LOG_SUFFIX = "-wal"
_INDEX_SUFFIX = "-shm"
_POLL_S = 0.05
# Of a disk, quota or file size limit that takes no more.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Processes write their own id, so that a second server can name the first.
_MAX_PID_BYTES = 20

MOVED = (
    "the job database {name} was removed or replaced while the server was running: new jobs are "
    "refused until its files are back or the server is restarted"
)


class DatabaseInUse(OSError):
    """Another process uses the database."""


def real_path(path: Path) -> Path:
    """Return the path without symbolic links and `..`, also of a path below /proc/self/fd.

    SQLite keeps its log beside the path that it opens, so every server must open the same one.
    """
    return Path(os.path.realpath(path))


def lock_of(path: Path) -> Path:
    """Return the file that a server locks as long as it uses a database."""
    return path.with_name(path.name + _LOCK_SUFFIX)


def other_names(path: Path) -> str | None:
    """Return why a database with several names may not be opened by this one; None if it may.

    SQLite's log is beside one of the names only. Opened by another name, acknowledged jobs in the
    log would be missing and the log would later be applied to a changed database. The lock file
    beside a name says that servers have used the database by it.
    """
    try:
        links = path.stat().st_nlink
    except OSError:
        return None
    if links < 2 or lock_of(path).exists():
        return None
    return (
        f"it is a hard link, and its log of recent jobs is beside another of its {links} names: "
        "use that name, or remove it after the server has been stopped"
    )


class ServerLock:
    """Held by a server for as long as it uses a database; the kernel releases it at its end."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = lock_of(path)
        self._fd = -1

    def take(self) -> None:
        """Take the lock; harmless if it is taken.

        Raises StoreUnusable if the database must be opened by another of its names, DatabaseInUse,
        and OSError.
        """
        if self._fd >= 0:
            return
        if (reason := other_names(self._database)) is not None:
            raise StoreUnusable(f"the job database {self._database.name} is refused: {reason}")
        try:
            fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in FULL:
                # The lock on the database itself has to do.
                return
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DatabaseInUse("another server uses it") from None
        self._fd = fd
        # On a full disk the lock alone has to do.
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.write(fd, b"%d" % os.getpid())

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DatabaseFile:
    """The locked file of a store process.

    The descriptor stays open until the process ends: closing it would release the locks that SQLite
    has on the file, because POSIX locks belong to a process and not to a descriptor.

    An existing file keeps its mode until `make_private`, since it may be another program's.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.inode = os.fstat(fd).st_ino
        self._log = path.with_name(path.name + _LOG_SUFFIX)
        self._log_inode: int | None = None

    @classmethod
    def lock(cls, path: Path, wait_s: float, inode: int | None) -> Self:
        """Open a database, or create it, and lock it, waiting for another process to end.

        With an `inode`, only the file that has it is accepted: a store process that replaces a
        crashed one must not continue with another database, or create an empty one.

        Raises:
            StoreUnusable: the file is another one.
            DatabaseInUse: another process has it for longer than `wait_s`.
            OSError: it cannot be opened.
        """
        deadline = time.monotonic() + wait_s
        while True:
            is_new = not path.exists()
            if inode is not None and (is_new or path.stat().st_ino != inode):
                raise StoreUnusable(MOVED.format(name=path.name))
            fd = (open_private if is_new else open_regular)(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() > deadline:
                    raise DatabaseInUse("another server uses it") from None
                # flock waits without end or not at all.
                time.sleep(_POLL_S)
                continue
            if os.fstat(fd).st_ino == _inode(path):
                break
            # It was replaced in this moment, and SQLite would open the new one.
            os.close(fd)
            if time.monotonic() > deadline:
                raise StoreUnusable(MOVED.format(name=path.name))
        if is_new:
            # SQLite syncs the names of its logs, but not that of a file that it finds.
            sync_folder(path.parent)
        return cls(path, fd)

    def make_private(self) -> None:
        """Correct the modes of the database and of the files beside it. Raises OSError."""
        make_private(self._fd, FILE_MODE)
        for suffix in (_LOG_SUFFIX, _INDEX_SUFFIX):
            with suppress(FileNotFoundError):
                make_private(self.path.with_name(self.path.name + suffix), FILE_MODE)

    def has_moved(self) -> bool:
        """Return whether its path or its log's path is another file by now, or none.

        Compares inodes alone, as SQLite does: some file systems report changing devices.
        """
        if _inode(self.path) != self.inode:
            return True
        found = _inode(self._log)
        if self._log_inode is None:
            self._log_inode = found
        return found != self._log_inode


def pin(path: Path, inode: int) -> int:
    """Open the database that a store process has open, and return the descriptor.

    As long as a file is open, its inode is not given to a new file. So a database that replaces it
    is recognised even if the store process has ended in between. Raises StoreUnusable if the
    database was replaced already, and OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        raise StoreUnusable(MOVED.format(name=path.name))
    return fd


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def user_of(path: Path) -> tuple[bool, int | None]:
    """Return whether a living server uses a database, and its process id if that is known.

    Creates and changes nothing. Raises OSError.
    """
    lock = lock_of(path)
    if is_locked(lock):
        return True, _pid_in(lock)
    # Beside a path that servers use there is a lock file. Without one, whoever has the file locked
    # came by another path, and is not the store process of a server killed a moment ago.
    return not lock.exists() and is_locked(path), None


def is_locked(path: Path) -> bool:
    """Return whether a process has an exclusive lock on a file, which need not exist."""
    try:
        # A pipe of somebody else's with this name is not waited for.
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


def _pid_in(lock: Path) -> int | None:
    """Return the process id in a lock file, if there is a process with it here."""
    try:
        pid = int(lock.read_bytes()[:_MAX_PID_BYTES])
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return None if state == "Z" else pid

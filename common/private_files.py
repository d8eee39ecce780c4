"""Files and folders that only their owner may read, whatever the umask.

They contain prompts and answers. The umask applies only to new files, and on most systems it lets
all users read those.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
NOT_REGULAR = "it is not a regular file"


def open_private(path: str | Path, flags: int) -> int:
    """Open a file with mode 0600, or create it so: an opener for `open`.

    A file that others may read is corrected. A symbolic link is not followed. Raises
    PermissionError if the file belongs to another user and others may read it, and OSError, also
    for anything but a regular file.
    """
    fd = open_regular(path, flags)
    try:
        make_private(fd, FILE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_regular(path: str | Path, flags: int) -> int:
    """Open a regular file without changing its mode; a symbolic link is not followed.

    Anything but a regular file is refused, without waiting for the other end of a pipe: as root,
    correcting the mode of /dev/null would close it for all other users. Raises OSError.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private(file: int | Path, mode: int) -> None:
    """Set the mode of a file or folder if it has another one.

    Raises PermissionError if it belongs to another user and others have access to it.
    """
    status = os.stat(file)
    if stat.S_IMODE(status.st_mode) == mode:
        return
    try:
        os.chmod(file, mode)
    except PermissionError:
        # A file system without modes, such as FAT, refuses the call of the owner as well.
        access_of_others = stat.S_IMODE(status.st_mode) & ~stat.S_IRWXU
        if status.st_uid != os.geteuid() and access_of_others:
            raise


def sync_folder(path: Path) -> None:
    """Sync a folder, so that its new file names survive a power failure. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

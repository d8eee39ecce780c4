"""Files that only their owner may read, whatever the umask, and remedies for other owners.

They contain prompts and answers. The umask applies only to new files, and on most systems it lets
all users read those.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
NOT_REGULAR = "it is not a regular file"
# Folders of the system, which no user may become the owner of: some themselves, and some with the
# folders in them, such as /var/lib and the homes of users.
_SYSTEM_FOLDERS = frozenset(("/", *(f"/{name}" for name in "media mnt opt srv tmp".split())))
_SYSTEM_TREES = frozenset(
    f"/{name}" for name in "bin boot dev etc home lib lib64 proc root run sbin sys usr var".split()
)


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


def is_read_only(path: Path) -> bool:
    """Return whether an existing path is on a read-only file system or mount."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def suggest_owner(path: Path, *, option: str = "", suffix: str = "") -> str:
    """Return how to make this process's user the owner of a path, or "" where that cannot help.

    It ends with the command, with an `option` of chown and a `suffix` of the path, such as `*` for
    a file's companions. It cannot help root, the owner, on a read-only file system, or if the mode
    gives the owner no access either. Folders of the system are not offered unless they are mounts.
    """
    user = os.geteuid()
    try:
        status = path.stat()
    except OSError:
        return ""
    needed = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR | stat.S_IWUSR
    has_access = status.st_mode & needed == needed
    if user in (0, status.st_uid) or not has_access or is_read_only(path) or _is_system(path):
        return ""
    command = " ".join(("sudo chown", *filter(None, (option, str(user), shlex.quote(str(path))))))
    return (
        f"change its owner, which is user {status.st_uid} (if a container mounts it, with its path "
        f"on the host): `{command}{suffix}`"
    )


def _is_system(path: Path) -> bool:
    path = path.resolve()
    names = {str(path), *([] if len(path.parts) > 3 else map(str, path.parents))}
    is_shared = str(path) in _SYSTEM_FOLDERS or not _SYSTEM_TREES.isdisjoint(names)
    return is_shared and (str(path) == "/" or not path.is_mount())

"""Files that are replaced in one step, so that readers see the old or the new content."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from common.private_files import make_private, sync_folder

_NEW_SUFFIX = ".new"


def replace_file(path: Path, pieces: Iterable[bytes], mode: int | None = None) -> None:
    """Replace a file's content, or create the file; after a failure the old content remains.

    The new content is on the disk before it gets the file's name, so this holds for a power failure
    too. The file has `mode`, whatever the umask; without it, a new file's mode. One writer at a
    time: the unfinished file has a fixed name, so that one that a killed process has left is used
    again. Raises OSError.
    """
    new = path.with_name(path.name + _NEW_SUFFIX)
    try:
        opener = None if mode is None else partial(_open_with_mode, mode)
        with open(new, "wb", 1 << 20, opener=opener) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        # On a full disk, the incomplete file would take space that is needed elsewhere.
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _open_with_mode(mode: int, path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        make_private(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

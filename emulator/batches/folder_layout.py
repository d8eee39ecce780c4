"""Which folders belong to this server, and which files in them it may remove.

A folder for batches is cleaned at each start and while the server runs. A user may set BATCH_DIR to
a folder that has other files in it, so a folder is only used if this program created it, and only
files with names of its own pattern are ever removed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import orjson

from batch.output.journal import SUFFIX

FILES, BATCHES, LOCK = "files", "batches", "lock"
# Its presence says that the program created the folder.
MARK = "worker-rkllm-batches.json"
RECORD = ".json"
_FORMAT = 1
# Unfinished files have this ending until they are renamed.
_NEW = ".new"
# Of an empty file system that is mounted for this purpose.
_IGNORED = frozenset({"lost+found", MARK + _NEW})

_ID_DIGITS = 28
_DIGITS = rf"[0-9a-f]{{{_ID_DIGITS}}}"
FILE_NAME = re.compile(
    rf"(?P<id>file-{_DIGITS})(?:{re.escape(RECORD)})?(?:{re.escape(_NEW)})?|\.upload-[0-9a-f]{{16}}"
)
BATCH_NAME = re.compile(
    rf"(?P<id>batch_{_DIGITS})"
    rf"(?:{re.escape(RECORD)}(?:{re.escape(_NEW)})?|{re.escape(SUFFIX)})"
)


def why_refused(folder: Path) -> str | None:
    """Return why an existing folder may not be used for batches; None if it may.

    A folder may be used if it has this program's mark, if it is empty, or if it has exactly what
    versions without a mark created: a lock and two folders in which every name is of their own
    pattern. Nothing is changed. Raises OSError.
    """
    try:
        mark = (folder / MARK).read_bytes()
    except FileNotFoundError:
        if _is_empty(folder):
            return None
        if not _has_earlier_layout(folder):
            return (
                "it was not created by this program and is not empty, so files in it could be "
                "lost: use a new or an empty folder"
            )
        if (other := _other_file(folder)) is None:
            return None
        return (
            f"an earlier version of this program seems to have created it, but {other} is not a "
            "file of this program: move that file to another folder, or use a new or an empty "
            "folder"
        )
    if (known := _format(mark)) > _FORMAT:
        return f"a later version of this program wrote it (format {known}, supported: {_FORMAT})"
    return None


def mark() -> bytes:
    """Return the content of the mark."""
    return orjson.dumps({"folder": "batches of worker-rkllm", "format": _FORMAT})


def _format(mark: bytes) -> int:
    try:
        return int(orjson.loads(mark)["format"])
    except (ValueError, TypeError, KeyError):
        # The name alone says whose folder it is, also where a disk has damaged the content.
        return _FORMAT


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        others = [entry for entry in entries if entry.name not in _IGNORED]
    # A full disk or a kill may have left a lock before the mark.
    return all(entry.name == LOCK and entry.stat().st_size == 0 for entry in others)


def _has_earlier_layout(folder: Path) -> bool:
    """Return whether a folder has what versions without a mark created at once."""
    lock = folder / LOCK
    return (
        lock.is_file()
        and not lock.is_symlink()
        and all(
            path.is_dir() and not path.is_symlink() for path in (folder / FILES, folder / BATCHES)
        )
    )


def _other_file(folder: Path) -> str | None:
    """Return a path in the two folders that versions without a mark cannot have created."""
    for name, pattern in ((FILES, FILE_NAME), (BATCHES, BATCH_NAME)):
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if not (pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                    return f"{name}/{entry.name}"
    return None

"""Decides which folders the server may use for batches, and which files it may remove in them.

The server removes files from the batch folder at each start and while it runs. A user may set
BATCH_DIR to a folder that has other files in it. Therefore a folder is only used if this program
created it, and only files whose names match the patterns below are ever removed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import orjson

from batch.output.journal import SUFFIX

FILES, BATCHES, LOCK = "files", "batches", "lock"
# This file marks a folder that the program has created.
MARKER = "worker-rkllm-batches.json"
RECORD_SUFFIX = ".json"
_FORMAT = 1
# The suffix of a file that is being written, until it is renamed.
_UNFINISHED_SUFFIX = ".new"
# Files that an empty folder may have: `lost+found` is in the root of a mounted file system.
_IGNORED = frozenset({"lost+found", MARKER + _UNFINISHED_SUFFIX})

_ID_DIGITS = 28
_DIGITS = rf"[0-9a-f]{{{_ID_DIGITS}}}"
FILE_NAME = re.compile(
    rf"(?P<id>file-{_DIGITS})(?:{re.escape(RECORD_SUFFIX)})?(?:{re.escape(_UNFINISHED_SUFFIX)})?|\.upload-[0-9a-f]{{16}}"
)
BATCH_NAME = re.compile(
    rf"(?P<id>batch_{_DIGITS})"
    rf"(?:{re.escape(RECORD_SUFFIX)}(?:{re.escape(_UNFINISHED_SUFFIX)})?|{re.escape(SUFFIX)})"
)


def explain_refusal(folder: Path) -> str | None:
    """Return why an existing folder may not be used for batches; None if it may.

    A folder may be used if it has this program's marker file, if it is empty, or if it has exactly
    what versions without a marker created: a lock and two folders in which every name matches
    their patterns. Nothing is changed. Raises OSError.
    """
    try:
        marker = (folder / MARKER).read_bytes()
    except FileNotFoundError:
        if _is_empty(folder):
            return None
        if not _has_layout_without_marker(folder):
            return (
                "it was not created by this program and is not empty, so files in it could be "
                "lost: use a new or an empty folder"
            )
        if (other := _find_other_file(folder)) is None:
            return None
        return (
            f"an earlier version of this program seems to have created it, but {other} is not a "
            "file of this program: move that file to another folder, or use a new or an empty "
            "folder"
        )
    if (version := _read_format(marker)) > _FORMAT:
        return f"a later version of this program wrote it (format {version}, supported: {_FORMAT})"
    return None


def encode_marker() -> bytes:
    """Return the content of the marker file."""
    return orjson.dumps({"folder": "batches of worker-rkllm", "format": _FORMAT})


def _read_format(marker: bytes) -> int:
    try:
        return int(orjson.loads(marker)["format"])
    except (ValueError, TypeError, KeyError):
        # The name alone identifies the folder, even if the disk has damaged the content.
        return _FORMAT


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        other_entries = [entry for entry in entries if entry.name not in _IGNORED]
    # If the disk was full or the process was killed, there may be a lock but no marker.
    return all(entry.name == LOCK and entry.stat().st_size == 0 for entry in other_entries)


def _has_layout_without_marker(folder: Path) -> bool:
    """Return whether a folder has the lock and folders of versions without a marker."""
    lock = folder / LOCK
    return (
        lock.is_file()
        and not lock.is_symlink()
        and all(
            path.is_dir() and not path.is_symlink() for path in (folder / FILES, folder / BATCHES)
        )
    )


def _find_other_file(folder: Path) -> str | None:
    """Return a path in the two folders that versions without a marker cannot have created."""
    for name, pattern in ((FILES, FILE_NAME), (BATCHES, BATCH_NAME)):
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if not (pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                    return f"{name}/{entry.name}"
    return None

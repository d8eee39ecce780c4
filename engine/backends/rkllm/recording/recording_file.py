"""The file of a recording: JSON lines that are written at once, up to a limit."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadFailed

logger = logging.getLogger(__name__)

FORMAT = "rkllm-recording"
VERSION = 1
MAX_BYTES = 64_000_000
# The line that follows the last event of a recording that has reached its limit.
_FULL_LINE = b'["full"]\n'
_MAX_FILES = 999


class RecordingFile:
    """Appends lines to a new file. Thread-safe.

    Each line is one write to the operating system, because the line before a crash of the library
    is the most important one. A write that fails ends the recording, not the run.

    Raises:
        ModelLoadFailed: the file cannot be created.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], max_bytes: int = MAX_BYTES) -> None:
        self.path, self._file = _create_new_file(path)
        self._free_bytes = max_bytes
        self._lock = threading.Lock()
        self._is_open = True
        self.write(json.dumps({"format": FORMAT, "version": VERSION, **header}))

    def write(self, line: str) -> None:
        """Append one line; do nothing if the recording has ended."""
        data = f"{line}\n".encode()
        with self._lock:
            if not self._is_open:
                return
            self._free_bytes -= len(data)
            if self._free_bytes < 0:
                data = _FULL_LINE
            try:
                os.write(self._file, data)
            except OSError as error:
                logger.warning("RKLLM_RECORD: %s ends here: %s", self.path, error.strerror)
                self._free_bytes = -1
            if self._free_bytes < 0:
                self._close()

    def close(self) -> None:
        """End the recording."""
        with self._lock:
            if self._is_open:
                self._close()

    def _close(self) -> None:
        self._is_open = False
        os.close(self._file)


def find_write_error(path: Path) -> str | None:
    """Return one sentence on why a recording cannot be created at a path, or None.

    It only checks the folder, so that the first recording is created by the process that records.
    """
    folder = path.parent
    if not os.path.isdir(folder):
        return f"{path} cannot be written: there is no folder {folder}"
    if os.path.isdir(path):
        return f"{path} cannot be written: it is a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{path} cannot be written: Permission denied"
    return None


def _create_new_file(path: Path) -> tuple[Path, int]:
    """Create the first file that does not exist yet; readable by the user only."""
    error = find_write_error(path)
    if error is not None:
        raise ModelLoadFailed(f"RKLLM_RECORD: {error}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    for candidate in _candidate_paths(path):
        try:
            return candidate, os.open(candidate, flags, 0o600)
        except FileExistsError:
            continue
        except OSError as failure:
            raise ModelLoadFailed(
                f"RKLLM_RECORD: {candidate} cannot be written: {failure.strerror}"
            ) from failure
    raise ModelLoadFailed(
        f"RKLLM_RECORD: {path} and {_MAX_FILES - 1} more recordings exist: remove some"
    )


def _candidate_paths(path: Path) -> Iterator[Path]:
    """Yield the path, and then those with .2, .3 and so on before the suffix."""
    yield path
    for number in range(2, _MAX_FILES + 1):
        yield path.with_name(f"{path.stem}.{number}{path.suffix}")

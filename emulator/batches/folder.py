"""Where files and batches are on disk."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import orjson

from batch.journal import SUFFIX
from batch.target import FileTarget
from emulator.batches.stored_batch import StoredBatch
from emulator.batches.stored_file import StoredFile
from jobs import StoreUnavailable
from jobs.failpoints import hit

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RECORD = ".json"


class NoRoom(Exception):
    """The disk, or what of it is for files, does not take more; nothing has changed."""


class Folder:
    """A file's bytes, and a record in JSON for each file and each batch.

    A record is what makes a thing be there: written last, removed first, each time whole and
    synced. Bytes without a record are what a kill has left, and go at the next start. All calls
    block; one is made at a time, but for `write`, which touches nothing that others do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / "files"
        self._batches = path / "batches"
        self._lock = -1

    @property
    def uploads(self) -> Path:
        """Where a file may be that is not one yet."""
        return self._files

    def bytes_of(self, file_id: str) -> Path:
        """Return where a file's bytes are."""
        return self._files / file_id

    def journal_of(self, batch_id: str) -> Path:
        """Return where a batch's answers are until it ends."""
        return self._batches / f"{batch_id}{SUFFIX}"

    def open(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """Return what is there, and remove what is half there.

        Raises:
            StoreUnavailable: another server has the folder, or it cannot be read or written.
        """
        try:
            # What clients ask is nobody else's business.
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._files, self._batches):
                folder.mkdir(exist_ok=True)
            self._lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = _records(self._files, lambda record: StoredFile(**record))
            batches = _records(self._batches, StoredBatch.from_record)
            files = [each for each in files if self.bytes_of(each.id).is_file()]
            _tidy(self._files, {name for each in files for name in (each.id, each.id + _RECORD)})
            journals = {self.journal_of(each.id).name for each in batches if not each.status.final}
            _tidy(self._batches, {each.id + _RECORD for each in batches} | journals)
        except BlockingIOError:
            raise StoreUnavailable(f"another server uses {self._path} (BATCH_DIR)") from None
        except OSError as error:
            raise StoreUnavailable(
                f"{self._path} (BATCH_DIR) cannot be used: {error.strerror}"
            ) from None
        return files, batches

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def take(self, file_id: str, upload: Path) -> None:
        """Make an upload, synced, the bytes of a file. Raises NoRoom."""
        self._told(lambda: upload.replace(self.bytes_of(file_id)))
        hit("upload-taken")

    def write(self, file_id: str, lines: Iterable[bytes]) -> int:
        """Write a file's bytes and return how many they are. Raises NoRoom."""
        path = self.bytes_of(file_id)
        self._told(lambda: FileTarget(path).write(lines))
        return path.stat().st_size

    def put_file(self, file: StoredFile) -> None:
        """Have a file be there whose bytes are. Raises NoRoom."""
        self._put(self._files / f"{file.id}{_RECORD}", asdict(file))

    def put_batch(self, batch: StoredBatch) -> None:
        """Have a batch be there as it is now. Raises NoRoom."""
        self._put(self._batches / f"{batch.id}{_RECORD}", batch.record())

    def drop_file(self, file_id: str) -> None:
        """Have a file be there no more. Raises NoRoom."""
        self._told(lambda: _drop(self._files / f"{file_id}{_RECORD}", self.bytes_of(file_id)))

    def drop_batch(self, batch_id: str) -> None:
        """Have a batch be there no more. Raises NoRoom."""
        record = self._batches / f"{batch_id}{_RECORD}"
        self._told(lambda: _drop(record, self.journal_of(batch_id)))

    def _put(self, path: Path, record: Mapping[str, Any]) -> None:
        self._told(lambda: FileTarget(path).write([orjson.dumps(record)]))

    def _told(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            raise NoRoom(f"the disk of BATCH_DIR does not take it: {error.strerror}") from None


def _records(folder: Path, read: Callable[[Mapping[str, Any]], T]) -> list[T]:
    found = []
    for path in sorted(folder.glob(f"*{_RECORD}")):
        try:
            found.append(read(orjson.loads(path.read_bytes())))
        except (ValueError, TypeError, KeyError):
            raise StoreUnavailable(f"{path} (BATCH_DIR) is damaged: move it away") from None
    return found


def _tidy(folder: Path, wanted: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in wanted:
            logger.warning("%s is what a killed server has left, and is removed", path)
            path.unlink()


def _drop(record: Path, rest: Path) -> None:
    FileTarget(record).remove()
    hit("record-dropped")
    rest.unlink(missing_ok=True)

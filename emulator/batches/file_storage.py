"""Where files and batches are on disk."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import orjson

from batch.output.destination import FileDestination
from batch.output.journal import SUFFIX
from emulator.batches.batch import StoredBatch
from emulator.batches.file import StoredFile
from emulator.batches.folder_layout import (
    BATCH_NAME,
    BATCHES,
    FILE_NAME,
    FILES,
    LOCK,
    MARK,
    RECORD,
    mark,
    why_refused,
)
from jobs import StoreUnavailable, StoreUnusable
from jobs.failpoints import failpoint
from jobs.sqlite.private_files import (
    FILE_MODE,
    FOLDER_MODE,
    make_private,
    open_private,
    sync_folder,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A disk, quota or file size limit that takes no more. Only such a disk is worth waiting for.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class NoRoom(Exception):
    """The disk, or the part of it that is for files, takes no more; nothing has changed."""


class Folder:
    """A file's bytes, and a JSON record for each file and each batch.

    A file or batch exists when its record does: the record is written last, removed first, and each
    time complete and synced. Bytes without a record were left by a killed server and are removed at
    the next start. A record that cannot be read is left where it is, with its bytes, and is named
    in `set_aside`.

    All files are readable by their owner only. All calls block; one is made at a time, except
    `write` and `new_upload`, which touch only files of their own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / FILES
        self._batches = path / BATCHES
        self._lock = -1
        # The disk was full at the start: the folder does not exist yet.
        self._is_missing = False
        self._creating = threading.Lock()
        self.set_aside: list[str] = []

    def bytes_of(self, file_id: str) -> Path:
        """Return where a file's bytes are."""
        return self._files / file_id

    def journal_of(self, batch_id: str) -> Path:
        """Return where a batch's answers are until it ends."""
        return self._batches / f"{batch_id}{SUFFIX}"

    def open(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """Take the folder, return what is in it, and remove what a killed server left incomplete.

        A new folder on a full disk is created as soon as there is space; until then, every write
        raises NoRoom.

        Raises:
            StoreUnusable: the folder is not one of this program's, another server uses it, or it
                belongs to another user.
            StoreUnavailable: it cannot be read or written.
        """
        try:
            self._prepare()
        except OSError as error:
            if error.errno in _FULL and not self._batches.exists():
                self._is_missing = True
                logger.error(
                    "%s (BATCH_DIR) cannot be created, uploads are refused until it can: %s",
                    self._path,
                    error.strerror,
                )
                return [], []
            is_final = isinstance(error, PermissionError) or error.errno == errno.EINVAL
            kind = StoreUnusable if is_final else StoreUnavailable
            raise kind(self._unusable(error)) from None
        try:
            return self._read()
        except OSError as error:
            raise StoreUnavailable(self._unusable(error)) from None

    def close(self) -> None:
        """Release the folder for other servers."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def new_upload(self, name: str) -> Path:
        """Return where an incomplete upload of this name may be written. Raises NoRoom."""
        self._attempt(lambda: None)
        return self._files / f".upload-{name}"

    def take(self, file_id: str, upload: Path) -> None:
        """Make a synced upload the bytes of a file. Raises NoRoom."""
        self._attempt(lambda: upload.replace(self.bytes_of(file_id)))
        failpoint("upload-taken")

    def write(self, file_id: str, lines: Iterable[bytes]) -> int:
        """Write a file's bytes and return their number. Raises NoRoom."""
        path = self.bytes_of(file_id)
        self._attempt(lambda: FileDestination(path, private=True).write(lines))
        return path.stat().st_size

    def put_file(self, file: StoredFile) -> None:
        """Write the record of a file whose bytes exist. Raises NoRoom."""
        self._put(self._files / f"{file.id}{RECORD}", asdict(file))

    def put_batch(self, batch: StoredBatch) -> None:
        """Write the record of a batch as it is now. Raises NoRoom."""
        self._put(self._batches / f"{batch.id}{RECORD}", batch.record())

    def drop_file(self, file_id: str) -> None:
        """Remove a file. Raises NoRoom."""
        self._attempt(lambda: _drop(self._files / f"{file_id}{RECORD}", self.bytes_of(file_id)))

    def drop_batch(self, batch_id: str) -> None:
        """Remove a batch. Raises NoRoom."""
        record = self._batches / f"{batch_id}{RECORD}"
        self._attempt(lambda: _drop(record, self.journal_of(batch_id)))

    def _prepare(self) -> None:
        """Create or check the folder and lock it. Raises StoreUnusable or OSError."""
        if self._path.exists() and (reason := why_refused(self._path)) is not None:
            raise StoreUnusable(f"{self._path} (BATCH_DIR) is refused: {reason}")
        is_new = not self._path.exists()
        self._path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        make_private(self._path, FOLDER_MODE)
        if is_new:
            sync_folder(self._path.parent)
        lock = open_private(self._path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_mark()
            for folder in (self._files, self._batches):
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                make_private(folder, FOLDER_MODE)
            sync_folder(self._path)
        except BlockingIOError:
            os.close(lock)
            raise StoreUnusable(f"another server uses {self._path} (BATCH_DIR)") from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _write_mark(self) -> None:
        path = self._path / MARK
        if path.exists():
            make_private(path, FILE_MODE)
            return
        try:
            FileDestination(path, private=True).write([mark()])
        except OSError as error:
            # A folder of an earlier version is recognised without a mark, too.
            if error.errno not in _FULL or not self._batches.exists():
                raise

    def _read(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """Return what has a record, and remove incomplete files. Raises OSError."""
        self.set_aside = []
        files = self._records(self._files, FILE_NAME, StoredFile.from_record)
        batches = self._records(self._batches, BATCH_NAME, StoredBatch.from_record)
        files = [each for each in files if self.bytes_of(each.id).is_file()]
        _tidy(
            self._files,
            FILE_NAME,
            {name for each in files for name in (each.id, each.id + RECORD)},
            self.set_aside,
        )
        journals = {self.journal_of(each.id).name for each in batches if not each.status.final}
        _tidy(
            self._batches,
            BATCH_NAME,
            {each.id + RECORD for each in batches} | journals,
            self.set_aside,
        )
        return files, batches

    def _records(
        self, folder: Path, names: re.Pattern[str], read: Callable[[Mapping[str, Any]], T]
    ) -> list[T]:
        """Return the records in a folder; those that cannot be read are set aside."""
        found = []
        for path in sorted(folder.glob(f"*{RECORD}")):
            if (match := names.fullmatch(path.name)) is None:
                continue
            try:
                record = orjson.loads(path.read_bytes())
                # The id is part of paths that are removed later.
                if record["id"] != match["id"]:
                    raise ValueError("it has another id")
                found.append(read(record))
            # OSError: a damaged sector costs one record as well.
            except (OSError, ValueError, TypeError, KeyError) as error:
                logger.error(
                    "%s (BATCH_DIR) is damaged and set aside (%s): repair it or move it away",
                    path,
                    error,
                )
                self.set_aside.append(match["id"])
        return found

    def _put(self, path: Path, record: Mapping[str, Any]) -> None:
        self._attempt(lambda: FileDestination(path, private=True).write([orjson.dumps(record)]))

    def _attempt(self, work: Callable[[], object]) -> None:
        """Do something to the folder, which is created first if the disk was full at the start."""
        try:
            with self._creating:
                if self._is_missing:
                    self._prepare()
                    self._is_missing = False
            work()
        except OSError as error:
            raise NoRoom(f"the disk of BATCH_DIR does not take it: {error.strerror}") from None
        except StoreUnusable as error:
            raise NoRoom(str(error)) from None

    def _unusable(self, error: OSError) -> str:
        if isinstance(error, PermissionError):
            return (
                f"{self._path} (BATCH_DIR) cannot be used: {error.filename or self._path} belongs "
                "to another user or is not accessible"
            )
        if error.errno == errno.EINVAL:
            return f"{self._path} (BATCH_DIR) cannot be used: {error.filename}: {error.strerror}"
        return f"{self._path} (BATCH_DIR) cannot be used: {error.strerror}"


def _tidy(folder: Path, names: re.Pattern[str], wanted: set[str], set_aside: list[str]) -> None:
    """Remove what a killed server left incomplete, and make the rest private.

    A file whose name is not of this program's pattern is never touched.
    """
    for path in folder.iterdir():
        match = names.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_file():
            logger.warning("%s is not a file of this server and is left alone", path)
        elif path.name in wanted or match["id"] in set_aside:
            make_private(path, FILE_MODE)
        else:
            logger.warning("%s was left incomplete by a killed server and is removed", path)
            path.unlink()


def _drop(record: Path, rest: Path) -> None:
    FileDestination(record).remove()
    failpoint("record-dropped")
    rest.unlink(missing_ok=True)

"""Stores files, batches and their records in BATCH_DIR."""

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
from common.failpoints import failpoint
from common.private_files import (
    FILE_MODE,
    FOLDER_MODE,
    make_private,
    open_private,
    suggest_owner,
    sync_folder,
)
from emulator.batches.folder_layout import (
    BATCH_NAME,
    BATCHES,
    FILE_NAME,
    FILES,
    LOCK,
    MARKER,
    RECORD_SUFFIX,
    encode_marker,
    explain_refusal,
)
from emulator.batches.models import StoredBatch, StoredFile
from jobs import StoreUnavailable, StoreUnusable

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The disk, quota or file size limit is full. Other errors do not pass by waiting.
_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class InsufficientStorage(Exception):
    """The disk or BATCH_STORE_MB is full; nothing was changed."""


class FileStorage:
    """Stores the content of each file, and a JSON record for each file and each batch.

    A file or batch exists if its record exists: the record is written last and removed first, and
    each change of it is atomic and synced. Content without a record was left by a killed server and
    is removed at the next start. A record that cannot be read stays in place, with its content, and
    its id is in `damaged_ids`.

    Only their owner can read the files. All methods block. Only one may be called at a time, except
    `write_content` and `new_upload`, which touch no files of other calls.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / FILES
        self._batches = path / BATCHES
        self._lock_fd = -1
        # Whether the folder does not exist yet, because the disk was full at the start.
        self._is_missing = False
        self._creation_lock = threading.Lock()
        self.damaged_ids: list[str] = []

    def content_path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._files / file_id

    def journal_path(self, batch_id: str) -> Path:
        """Return the path of the journal that a batch has until it ends."""
        return self._batches / f"{batch_id}{SUFFIX}"

    def open(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """Lock the folder, return its files and batches, and remove incomplete files.

        If the disk is full, a new folder is created by the first write for which there is space;
        until then, every write raises InsufficientStorage.

        Raises:
            StoreUnusable: the folder is not one of this program's, another server uses it, or it
                belongs to another user.
            StoreUnavailable: it cannot be read or written.
        """
        try:
            self._create_and_lock()
        except OSError as error:
            if error.errno in _DISK_FULL_ERRNOS and not self._batches.exists():
                self._is_missing = True
                logger.error(
                    "%s (BATCH_DIR) cannot be created, uploads are refused until it can: %s",
                    self._path,
                    error.strerror,
                )
                return [], []
            is_final = isinstance(error, PermissionError) or error.errno == errno.EINVAL
            kind = StoreUnusable if is_final else StoreUnavailable
            raise kind(self._explain_unusable(error)) from None
        try:
            return self._read_all()
        except OSError as error:
            raise StoreUnavailable(self._explain_unusable(error)) from None

    def close(self) -> None:
        """Release the folder for other servers."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def new_upload(self, name: str) -> Path:
        """Return the path for an upload until it is complete. Raises InsufficientStorage."""
        self._write_to_folder(lambda: None)
        return self._files / f".upload-{name}"

    def store_upload(self, file_id: str, upload: Path) -> None:
        """Make a synced upload the content of a file. Raises InsufficientStorage."""
        self._write_to_folder(lambda: upload.replace(self.content_path(file_id)))
        failpoint("upload-taken")

    def write_content(self, file_id: str, lines: Iterable[bytes]) -> int:
        """Write a file's content and return its size in bytes. Raises InsufficientStorage."""
        path = self.content_path(file_id)
        self._write_to_folder(lambda: FileDestination(path, private=True).write(lines))
        return path.stat().st_size

    def save_file(self, file: StoredFile) -> None:
        """Write the record of a file whose content exists. Raises InsufficientStorage."""
        self._save_record(self._files / f"{file.id}{RECORD_SUFFIX}", asdict(file))

    def save_batch(self, batch: StoredBatch) -> None:
        """Write the record of a batch. Raises InsufficientStorage."""
        self._save_record(self._batches / f"{batch.id}{RECORD_SUFFIX}", batch.to_record())

    def delete_file(self, file_id: str) -> None:
        """Delete a file. Raises InsufficientStorage."""
        self._write_to_folder(
            lambda: _delete(self._files / f"{file_id}{RECORD_SUFFIX}", self.content_path(file_id))
        )

    def delete_batch(self, batch_id: str) -> None:
        """Delete a batch. Raises InsufficientStorage."""
        record = self._batches / f"{batch_id}{RECORD_SUFFIX}"
        self._write_to_folder(lambda: _delete(record, self.journal_path(batch_id)))

    def _create_and_lock(self) -> None:
        """Create or check the folder and lock it. Raises StoreUnusable or OSError."""
        if self._path.exists() and (reason := explain_refusal(self._path)) is not None:
            raise StoreUnusable(f"{self._path} (BATCH_DIR) is refused: {reason}")
        is_new = not self._path.exists()
        self._path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        make_private(self._path, FOLDER_MODE)
        if is_new:
            sync_folder(self._path.parent)
        lock_fd = open_private(self._path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_marker()
            for folder in (self._files, self._batches):
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                make_private(folder, FOLDER_MODE)
            sync_folder(self._path)
        except BlockingIOError:
            os.close(lock_fd)
            raise StoreUnusable(f"another server uses {self._path} (BATCH_DIR)") from None
        except BaseException:
            os.close(lock_fd)
            raise
        self._lock_fd = lock_fd

    def _write_marker(self) -> None:
        path = self._path / MARKER
        if path.exists():
            make_private(path, FILE_MODE)
            return
        try:
            FileDestination(path, private=True).write([encode_marker()])
        except OSError as error:
            # A folder of an earlier version is also recognised without a marker.
            if error.errno not in _DISK_FULL_ERRNOS or not self._batches.exists():
                raise

    def _read_all(self) -> tuple[list[StoredFile], list[StoredBatch]]:
        """Return the files and batches with a record; remove incomplete files. Raises OSError."""
        self.damaged_ids = []
        files = self._read_records(self._files, FILE_NAME, StoredFile.from_record)
        batches = self._read_records(self._batches, BATCH_NAME, StoredBatch.from_record)
        files = [file for file in files if self.content_path(file.id).is_file()]
        _remove_incomplete(
            self._files,
            FILE_NAME,
            {name for file in files for name in (file.id, file.id + RECORD_SUFFIX)},
            self.damaged_ids,
        )
        journals = {
            self.journal_path(batch.id).name for batch in batches if not batch.status.is_final
        }
        _remove_incomplete(
            self._batches,
            BATCH_NAME,
            {batch.id + RECORD_SUFFIX for batch in batches} | journals,
            self.damaged_ids,
        )
        return files, batches

    def _read_records(
        self, folder: Path, names: re.Pattern[str], read: Callable[[Mapping[str, Any]], T]
    ) -> list[T]:
        """Return the readable records of a folder; add the others to `damaged_ids`."""
        records = []
        for path in sorted(folder.glob(f"*{RECORD_SUFFIX}")):
            if (match := names.fullmatch(path.name)) is None:
                continue
            try:
                record = orjson.loads(path.read_bytes())
                # The id is part of the paths that are removed when the record is deleted.
                if record["id"] != match["id"]:
                    raise ValueError("it has another id")
                records.append(read(record))
            # OSError: a damaged sector makes only one record unreadable.
            except (OSError, ValueError, TypeError, KeyError) as error:
                logger.error(
                    "%s (BATCH_DIR) is damaged and set aside (%s): repair it or move it away",
                    path,
                    error,
                )
                self.damaged_ids.append(match["id"])
        return records

    def _save_record(self, path: Path, record: Mapping[str, Any]) -> None:
        self._write_to_folder(
            lambda: FileDestination(path, private=True).write([orjson.dumps(record)])
        )

    def _write_to_folder(self, work: Callable[[], object]) -> None:
        """Call `work`; create the folder first if the disk was full at the start.

        Raises InsufficientStorage.
        """
        try:
            with self._creation_lock:
                if self._is_missing:
                    self._create_and_lock()
                    self._is_missing = False
            work()
        except OSError as error:
            raise InsufficientStorage(
                f"the disk of BATCH_DIR does not take it: {error.strerror}"
            ) from None
        except StoreUnusable as error:
            raise InsufficientStorage(str(error)) from None

    def _explain_unusable(self, error: OSError) -> str:
        if isinstance(error, PermissionError):
            remedy = suggest_owner(self._path, option="-R")
            return (
                f"{self._path} (BATCH_DIR) cannot be used: {error.filename or self._path} belongs "
                "to another user or is not accessible" + (f"; {remedy}" if remedy else "")
            )
        if error.errno == errno.EINVAL:
            return f"{self._path} (BATCH_DIR) cannot be used: {error.filename}: {error.strerror}"
        return f"{self._path} (BATCH_DIR) cannot be used: {error.strerror}"


def _remove_incomplete(
    folder: Path, names: re.Pattern[str], kept_names: set[str], damaged_ids: list[str]
) -> None:
    """Remove the files that a killed server left incomplete; make the other files private.

    A file whose name does not match this program's pattern is never touched.
    """
    for path in folder.iterdir():
        match = names.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_file():
            logger.warning("%s is not a file of this server and is left alone", path)
        elif path.name in kept_names or match["id"] in damaged_ids:
            make_private(path, FILE_MODE)
        else:
            logger.warning("%s was left incomplete by a killed server and is removed", path)
            path.unlink()


def _delete(record: Path, content: Path) -> None:
    FileDestination(record).remove()
    failpoint("record-dropped")
    content.unlink(missing_ok=True)

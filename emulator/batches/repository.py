"""Keeps all files and batches in memory, in step with the disk."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from common.value_description import describe_value
from emulator.batches.file_storage import FileStorage, InsufficientStorage
from emulator.batches.models import StoredBatch, StoredFile
from handler.errors import InvalidRequest, NotFound

T = TypeVar("T")

# Hexadecimal digits of the number in an id; 48 bits never run out.
_NUMBER_DIGITS = 12
_ID = re.compile(rf"(?:file-|batch_)[0-9a-f]{{{_NUMBER_DIGITS + 16}}}")


def is_valid_id(value: str) -> bool:
    """Return whether a string has the form of a file id or a batch id."""
    return _ID.fullmatch(value) is not None


class BatchRepository:
    """All files and batches; each change is on disk before it is visible.

    Ids start with an increasing number, so they sort in the order of creation even if the clock is
    changed, and a list can continue after an id that was deleted meanwhile. Owned by the event
    loop; changes are written one at a time, on a thread.
    """

    def __init__(self, storage: FileStorage, max_bytes: int) -> None:
        self.storage = storage
        self._max_bytes = max_bytes
        self._files: dict[str, StoredFile] = {}
        self._batches: dict[str, StoredBatch] = {}
        self._bytes = 0
        # Bytes of uploads and journals that are not files yet.
        self._reserved = 0
        self._last_number = 0
        self._write_lock = asyncio.Lock()

    async def open(self) -> None:
        """Open the folder and read its files and batches. Raises StoreUnavailable."""
        files, batches = await asyncio.to_thread(self.storage.open)
        self._files = {file.id: file for file in files}
        self._batches = {batch.id: batch for batch in batches}
        self._bytes = sum(file.bytes for file in files)
        ids = (*self._files, *self._batches, *self.storage.damaged_ids)
        self._last_number = max(map(_parse_number, ids), default=0)

    def close(self) -> None:
        """Release the folder for other servers."""
        self.storage.close()

    @property
    def files(self) -> list[StoredFile]:
        """All files, the oldest first."""
        return [self._files[file_id] for file_id in sorted(self._files)]

    @property
    def batches(self) -> list[StoredBatch]:
        """All batches, the oldest first."""
        return [self._batches[batch_id] for batch_id in sorted(self._batches)]

    def file(self, file_id: str, param: str | None = None) -> StoredFile:
        """Return a file. Raises NotFound, which names the parameter that has the id."""
        file = self._files.get(file_id)
        if file is None:
            raise NotFound(f"there is no file {describe_value(file_id)}", param)
        return file

    def batch(self, batch_id: str) -> StoredBatch:
        """Return a batch. Raises NotFound."""
        batch = self._batches.get(batch_id)
        if batch is None:
            raise NotFound(f"there is no batch {describe_value(batch_id)}")
        return batch

    def new_id(self, prefix: str) -> str:
        """Return an id that sorts after all others."""
        self._last_number += 1
        return f"{prefix}{self._last_number:0{_NUMBER_DIGITS}x}{secrets.token_hex(8)}"

    def find_batch_using(self, file_id: str) -> str | None:
        """Return the id of an unfinished batch that needs a file, or None."""
        for batch in self._batches.values():
            needed_ids = (batch.input_file_id, *(batch.results or ()))
            if not batch.status.is_final and file_id in needed_ids:
                return batch.id
        return None

    def reserve(self, size: int) -> None:
        """Reserve bytes before they are written. Raises InsufficientStorage."""
        if self._bytes + self._reserved + size > self._max_bytes:
            raise InsufficientStorage(
                f"{self._max_bytes / 1e6:g} MB of files may be kept (BATCH_STORE_MB), and there is "
                "no room for more: delete files that are not needed"
            )
        self._reserved += size

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self._reserved -= size

    async def add_upload(self, file: StoredFile, upload: Path, reservation: Reservation) -> None:
        """Add a synced upload, which replaces its reservation. Raises InsufficientStorage."""
        async with self._write_lock:
            reservation.reserve_up_to(file.bytes)
            await asyncio.to_thread(self.storage.store_upload, file.id, upload)
            await asyncio.to_thread(self.storage.save_file, file)
            self._index_file(file)
            reservation.release()

    async def add_file(self, file: StoredFile) -> None:
        """Add or replace a file whose content exists. Raises InsufficientStorage."""
        async with self._write_lock:
            await asyncio.to_thread(self.storage.save_file, file)
            self._index_file(file)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file.

        Raises:
            NotFound: there is no such file.
            InvalidRequest: an unfinished batch needs it.
            InsufficientStorage: the disk cannot be written.
        """
        async with self._write_lock:
            file = self.file(file_id)
            if (batch_id := self.find_batch_using(file_id)) is not None:
                raise InvalidRequest(f"{batch_id} needs the file: cancel it or wait for its end")
            await asyncio.to_thread(self.storage.delete_file, file_id)
            del self._files[file_id]
            self._bytes -= file.bytes

    async def add_batch(self, batch: StoredBatch) -> None:
        """Add a new batch.

        Raises:
            NotFound: its input file was deleted meanwhile.
            InsufficientStorage: the disk cannot be written.
        """
        async with self._write_lock:
            self.file(batch.input_file_id, "input_file_id")
            await asyncio.to_thread(self.storage.save_batch, batch)
            self._batches[batch.id] = batch

    async def update_batch(
        self, batch_id: str, change: Callable[[StoredBatch, int], StoredBatch]
    ) -> StoredBatch:
        """Replace a batch by the result of `change`, which gets the batch and the current time.

        If `change` raises, nothing is changed.

        Raises:
            NotFound: there is no such batch.
            InsufficientStorage: the disk cannot be written.
        """
        async with self._write_lock:
            batch = self.batch(batch_id)
            changed = change(batch, unix_time())
            if changed != batch:
                await asyncio.to_thread(self.storage.save_batch, changed)
                self._batches[batch_id] = changed
            return changed

    async def delete_batch(self, batch_id: str) -> None:
        """Delete a batch that has ended. Raises InsufficientStorage."""
        async with self._write_lock:
            await asyncio.to_thread(self.storage.delete_batch, batch_id)
            del self._batches[batch_id]

    def _index_file(self, file: StoredFile) -> None:
        previous = self._files.get(file.id)
        self._bytes += file.bytes - (previous.bytes if previous is not None else 0)
        self._files[file.id] = file


class Reservation:
    """The part of BATCH_STORE_MB that an upload or a batch reserves before it writes.

    Uploads and batches that write at the same time can therefore not exceed the limit together.
    """

    def __init__(self, repository: BatchRepository) -> None:
        self._repository = repository
        self._bytes = 0

    def reserve_up_to(self, size: int) -> None:
        """Reserve bytes until `size` are reserved in total. Raises InsufficientStorage."""
        if size > self._bytes:
            self._repository.reserve(size - self._bytes)
            self._bytes = size

    def release(self) -> None:
        """Release all reserved bytes."""
        self._repository.release(self._bytes)
        self._bytes = 0


def unix_time() -> int:
    """Return the current time in whole seconds since 1970."""
    return int(time.time())


def _parse_number(file_or_batch_id: str) -> int:
    return int(file_or_batch_id[-_NUMBER_DIGITS - 16 : -16], 16)

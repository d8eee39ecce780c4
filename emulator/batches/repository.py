"""All files and batches, in memory as they are on disk."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from emulator.batches.batch import StoredBatch
from emulator.batches.file import StoredFile
from emulator.batches.file_storage import Folder, NoRoom
from handler.errors import InvalidRequest, NotFound
from handler.sampling import describe_value

T = TypeVar("T")

# As many digits as keep ids in order for ever.
_DIGITS = 12
_ID = re.compile(rf"(?:file-|batch_)[0-9a-f]{{{_DIGITS + 16}}}")


def is_id(value: str) -> bool:
    """Whether a string is how an id of a file or a batch is written."""
    return _ID.fullmatch(value) is not None


class BatchStore:
    """The book of files and batches; nothing is told that is not on disk.

    Ids begin with a number that counts up, so that their order is that in which things were made,
    whatever the clock says, and a page goes on behind one that was deleted meanwhile. Owned by the
    event loop; one change at a time is made, on a thread.
    """

    def __init__(self, folder: Folder, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._files: dict[str, StoredFile] = {}
        self._batches: dict[str, StoredBatch] = {}
        self._bytes = 0
        # Bytes of uploads and answers that are no files yet.
        self._reserved = 0
        self._last = 0
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Find what is there. Raises StoreUnavailable."""
        files, batches = await asyncio.to_thread(self.folder.open)
        self._files = {each.id: each for each in files}
        self._batches = {each.id: each for each in batches}
        self._bytes = sum(each.bytes for each in files)
        numbers = [_number(each) for each in (*self._files, *self._batches, *self.folder.set_aside)]
        self._last = max(numbers, default=0)

    def close(self) -> None:
        """Let another server have the folder."""
        self.folder.close()

    @property
    def files(self) -> list[StoredFile]:
        """All files, the oldest first."""
        return [self._files[each] for each in sorted(self._files)]

    @property
    def batches(self) -> list[StoredBatch]:
        """All batches, the oldest first."""
        return [self._batches[each] for each in sorted(self._batches)]

    def file(self, file_id: str, param: str | None = None) -> StoredFile:
        """Return a file. Raises NotFound, for the parameter that named it."""
        found = self._files.get(file_id)
        if found is None:
            raise NotFound(f"there is no file {describe_value(file_id)}", param)
        return found

    def batch(self, batch_id: str) -> StoredBatch:
        """Return a batch. Raises NotFound."""
        found = self._batches.get(batch_id)
        if found is None:
            raise NotFound(f"there is no batch {describe_value(batch_id)}")
        return found

    def new_id(self, prefix: str) -> str:
        """Return an id behind all that there are."""
        self._last += 1
        return f"{prefix}{self._last:0{_DIGITS}x}{secrets.token_hex(8)}"

    def user_of(self, file_id: str) -> str | None:
        """Return the batch that has not ended and needs a file; None where there is none."""
        for batch in self._batches.values():
            needs = (batch.input_file_id, *(batch.results or ()))
            if not batch.status.final and file_id in needs:
                return batch.id
        return None

    def reserve(self, size: int) -> None:
        """Reserve bytes of an upload or of answers before they are written. Raises NoRoom."""
        if self._bytes + self._reserved + size > self._max_bytes:
            raise NoRoom(
                f"{self._max_bytes / 1e6:g} MB of files may be kept (BATCH_STORE_MB), and there is "
                "no room for more: delete files that are not needed"
            )
        self._reserved += size

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self._reserved -= size

    async def add_upload(self, file: StoredFile, upload: Path, room: Reservation) -> None:
        """Keep a synced upload in place of the room reserved for it. Raises NoRoom."""
        async with self._changing:
            room.grow_to(file.bytes)
            await asyncio.to_thread(self.folder.take, file.id, upload)
            await asyncio.to_thread(self.folder.put_file, file)
            self._note(file)
            room.release()

    async def add_file(self, file: StoredFile) -> None:
        """Keep a file whose bytes are there, perhaps for the second time. Raises NoRoom."""
        async with self._changing:
            await asyncio.to_thread(self.folder.put_file, file)
            self._note(file)

    async def remove_file(self, file_id: str) -> None:
        """Forget a file.

        Raises:
            NotFound: there is none.
            InvalidRequest: a batch needs it.
            NoRoom: the disk cannot be written.
        """
        async with self._changing:
            file = self.file(file_id)
            if (user := self.user_of(file_id)) is not None:
                raise InvalidRequest(f"{user} needs the file: cancel it or wait for its end")
            await asyncio.to_thread(self.folder.drop_file, file_id)
            del self._files[file_id]
            self._bytes -= file.bytes

    async def add_batch(self, batch: StoredBatch) -> None:
        """Keep a new batch. Raises NotFound where its input went meanwhile, or NoRoom."""
        async with self._changing:
            self.file(batch.input_file_id, "input_file_id")
            await asyncio.to_thread(self.folder.put_batch, batch)
            self._batches[batch.id] = batch

    async def change(
        self, batch_id: str, change: Callable[[StoredBatch, int], StoredBatch]
    ) -> StoredBatch:
        """Have a batch be what `change` makes of it now; what that raises changes nothing.

        Raises:
            NotFound: there is no such batch.
            NoRoom: the disk cannot be written.
        """
        async with self._changing:
            batch = self.batch(batch_id)
            changed = change(batch, now())
            if changed != batch:
                await asyncio.to_thread(self.folder.put_batch, changed)
                self._batches[batch_id] = changed
            return changed

    async def forget_batch(self, batch_id: str) -> None:
        """Forget a batch that has ended. Raises NoRoom."""
        async with self._changing:
            await asyncio.to_thread(self.folder.drop_batch, batch_id)
            del self._batches[batch_id]

    def _note(self, file: StoredFile) -> None:
        before = self._files.get(file.id)
        self._bytes += file.bytes - (before.bytes if before is not None else 0)
        self._files[file.id] = file


class Reservation:
    """The part of BATCH_STORE_MB that an upload or a batch has, reserved before it writes bytes.

    Uploads and batches that write at the same time can therefore not exceed the limit together.
    """

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self._bytes = 0

    def grow_to(self, size: int) -> None:
        """Reserve room for so many bytes in all. Raises NoRoom."""
        if size > self._bytes:
            self._store.reserve(size - self._bytes)
            self._bytes = size

    def release(self) -> None:
        """Give the room back."""
        self._store.release(self._bytes)
        self._bytes = 0


def now() -> int:
    """Return the time as clients are told it, in whole seconds since 1970."""
    return int(time.time())


def _number(known_id: str) -> int:
    return int(known_id[-_DIGITS - 16 : -16], 16)

"""Stores the objects of the bucket in a folder: two files each, the content and its record."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from common.atomic_files import replace_file
from common.private_files import FILE_MODE, FOLDER_MODE, make_private, open_private
from emulator.bucket.errors import BucketError
from emulator.bucket.keys import BucketKeys
from jobs import StoreUnavailable, StoreUnusable

logger = logging.getLogger(__name__)

# This file marks a folder that the program has created, and has the keys of the bucket: URLs that
# were signed before a restart open after it.
_MARKER = "worker-rkllm-bucket.json"
_RECORD_SUFFIX = ".json"
# Only files with such names are ever removed.
_FILE_NAME = re.compile(r"object-[0-9a-f]{28}(\.json(\.new)?)?|\.upload-[0-9a-f]{16}")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# A file counts for this many bytes more: a block of the disk, and its entry in memory.
FILE_OVERHEAD_BYTES = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object: its key, and the headers of its responses."""

    id: str
    bucket: str
    key: str
    size: int
    etag: str
    stored_at: float
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """The received bytes of an object or of a part, whose space is reserved."""

    path: Path
    size: int
    md5: str


class BucketStorage:
    """The objects by their bucket and key, and the space that they and running uploads take.

    A key is never part of a path. An object exists if its record exists, which is written last. An
    upload for which there is no space is refused: an object whose URL was returned stays readable
    until its retention is over. Owned by the event loop.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._objects: dict[tuple[str, str], StoredObject] = {}
        self.used_bytes = 0

    def open(self) -> BucketKeys:
        """Read the folder, or create it; remove incomplete uploads, and return the keys.

        Raises:
            StoreUnusable: the folder is not one of this program's.
            StoreUnavailable: it cannot be read or written.
        """
        try:
            keys = self._open_folder()
            self._read_objects()
        except OSError as error:
            raise StoreUnavailable(
                f"the folder of the bucket {self._folder} (beside JOB_DB) cannot be used: "
                f"{error.strerror}"
            ) from None
        return keys

    def find(self, bucket: str, key: str) -> StoredObject | None:
        """Return an object; None if there is none with the key."""
        return self._objects.get((bucket, key))

    def objects(self) -> Iterator[StoredObject]:
        """Yield all objects; they may be deleted meanwhile."""
        yield from list(self._objects.values())

    def content_path(self, stored: StoredObject) -> Path:
        """Return the path of an object's content."""
        return self._folder / stored.id

    def reserve(self, size: int) -> None:
        """Count `size` bytes more.

        Raises:
            BucketError: the bucket has no space for them.
        """
        if self.used_bytes + size > self._max_bytes:
            maximum = f"{self._max_bytes / 1e6:g} MB (BUCKET_STORE_MB)"
            if size > self._max_bytes:
                message = f"the object is larger than the bucket's {maximum}"
                raise BucketError("EntityTooLarge", 400, message)
            raise BucketError(
                "InsufficientStorage",
                507,
                f"the bucket of this server is full: its objects take {self.used_bytes / 1e6:.1f} "
                f"of {maximum}; `worker-rkllm reset` removes them",
            )
        self.used_bytes += size

    def release(self, size: int) -> None:
        """Stop counting `size` bytes."""
        self.used_bytes -= size

    def create_upload(self) -> tuple[Path, int]:
        """Create a file for bytes that arrive; return its path and its descriptor.

        Raises OSError.
        """
        path = self._folder / f".upload-{secrets.token_hex(8)}"
        return path, open_private(path, _CREATE)

    async def store(
        self,
        bucket: str,
        key: str,
        file: ReceivedFile,
        etag: str,
        headers: Mapping[str, str],
        stored_at: float,
    ) -> None:
        """Make a received file an object; one that has the key is replaced. Raises OSError."""
        stored = StoredObject(
            id=f"object-{secrets.token_hex(14)}",
            bucket=bucket,
            key=key,
            size=file.size,
            etag=etag,
            stored_at=stored_at,
            headers=headers,
        )
        record = self._record_path(stored)
        new = record.with_name(f"{record.name}.new")
        # Not on a thread, which would go on if this request is cancelled. Nothing is synced: after
        # a power failure the jobs run again.
        with os.fdopen(open_private(new, _CREATE), "wb") as output:
            output.write(orjson.dumps(asdict(stored)))
        file.path.replace(self.content_path(stored))
        new.replace(record)
        replaced = self._objects.pop((bucket, key), None)
        self._objects[bucket, key] = stored
        if replaced is not None:
            await self._remove(replaced)

    async def discard(self, file: ReceivedFile) -> None:
        """Remove a received file that becomes no object."""
        self.release(file.size + FILE_OVERHEAD_BYTES)
        await asyncio.to_thread(file.path.unlink, missing_ok=True)

    async def delete(self, stored: StoredObject) -> None:
        """Delete an object that exists. Raises OSError."""
        if self._objects.get((stored.bucket, stored.key)) is stored:
            del self._objects[stored.bucket, stored.key]
            await self._remove(stored)

    async def _remove(self, stored: StoredObject) -> None:
        self.release(stored.size + FILE_OVERHEAD_BYTES)

        def unlink() -> None:
            self._record_path(stored).unlink(missing_ok=True)
            self.content_path(stored).unlink(missing_ok=True)

        await asyncio.to_thread(unlink)

    def _record_path(self, stored: StoredObject) -> Path:
        return self._folder / f"{stored.id}{_RECORD_SUFFIX}"

    def _open_folder(self) -> BucketKeys:
        """Create or check the folder; return its keys. Raises StoreUnusable or OSError."""
        marker = self._folder / _MARKER
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        try:
            record = orjson.loads(marker.read_bytes())
            keys = BucketKeys(str(record["access_key_id"]), str(record["secret"]))
        except FileNotFoundError:
            if any(each.name != f"{_MARKER}.new" for each in self._folder.iterdir()):
                raise StoreUnusable(
                    f"the folder {self._folder} (beside JOB_DB) is refused as bucket: it was not "
                    "created by this program and is not empty, so files in it could be lost"
                ) from None
            keys = BucketKeys.generate()
        except (ValueError, TypeError, KeyError):
            logger.warning("%s is damaged: URLs that were signed before do not open", marker)
            keys = BucketKeys.generate()
        else:
            # A folder that exists is not written to, because the disk may be full.
            make_private(self._folder, FOLDER_MODE)
            make_private(marker, FILE_MODE)
            return keys
        make_private(self._folder, FOLDER_MODE)
        replace_file(marker, [orjson.dumps(asdict(keys))], FILE_MODE)
        return keys

    def _read_objects(self) -> None:
        """Read the records; remove files that are not part of an object. Raises OSError."""
        kept = {_MARKER}
        for record in sorted(self._folder.glob(f"object-*{_RECORD_SUFFIX}")):
            if not _FILE_NAME.fullmatch(record.name):
                continue
            try:
                stored = StoredObject(**orjson.loads(record.read_bytes()))
                is_complete = self.content_path(stored).stat().st_size == stored.size
                if f"{stored.id}{_RECORD_SUFFIX}" != record.name or not is_complete:
                    raise ValueError("its content is missing")
            except (OSError, ValueError, TypeError) as error:
                logger.warning("%s is damaged and is removed: %s", record, error)
                continue
            if (stored.bucket, stored.key) in self._objects:
                continue
            self._objects[stored.bucket, stored.key] = stored
            self.used_bytes += stored.size + FILE_OVERHEAD_BYTES
            kept |= {record.name, stored.id}
        for path in self._folder.iterdir():
            if path.name not in kept and _FILE_NAME.fullmatch(path.name) and path.is_file():
                path.unlink()

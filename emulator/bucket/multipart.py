"""Uploads in several parts, which become one object when they are complete."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.digits import parse_digits
from emulator.bucket.errors import BucketError
from emulator.bucket.storage import FILE_OVERHEAD_BYTES, BucketStorage, ReceivedFile

MAX_PARTS = 10_000
# S3 refuses smaller parts, except the last one.
_MIN_PART_BYTES = 5 << 20
_MAX_UPLOADS = 1_000


@dataclass(slots=True)
class MultipartUpload:
    """The parts of an object that have been received. They are lost when the server ends."""

    id: str
    bucket: str
    key: str
    headers: Mapping[str, str]
    started_at: float
    parts: dict[int, ReceivedFile] = field(default_factory=dict)


class MultipartUploads:
    """The uploads in several parts that are not complete; owned by the event loop."""

    def __init__(self, storage: BucketStorage) -> None:
        self._storage = storage
        self._uploads: dict[str, MultipartUpload] = {}

    def create(self, bucket: str, key: str, headers: Mapping[str, str], now: float) -> str:
        """Begin an upload; return its id. Raises BucketError if there are too many."""
        if len(self._uploads) >= _MAX_UPLOADS:
            raise BucketError(
                "TooManyUploads", 400, f"there are {_MAX_UPLOADS:,} incomplete multipart uploads"
            )
        upload_id = secrets.token_hex(16)
        self._uploads[upload_id] = MultipartUpload(upload_id, bucket, key, headers, now)
        return upload_id

    def find(self, upload_id: str, bucket: str, key: str) -> MultipartUpload:
        """Return an upload. Raises BucketError if there is none."""
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.bucket, upload.key) != (bucket, key):
            raise BucketError(
                "NoSuchUpload",
                404,
                "there is no such multipart upload: it was completed, aborted or removed, or the "
                "server was restarted",
            )
        return upload

    async def add_part(self, upload: MultipartUpload, number: int, file: ReceivedFile) -> None:
        """Add a received part; one that has the number is replaced."""
        if upload.id not in self._uploads:
            await self._storage.discard(file)
            self.find(upload.id, upload.bucket, upload.key)
        replaced = upload.parts.pop(number, None)
        upload.parts[number] = file
        if replaced is not None:
            await self._storage.discard(replaced)

    async def abort(self, upload: MultipartUpload) -> None:
        """Remove an upload and its parts."""
        self._uploads.pop(upload.id, None)
        for part in upload.parts.values():
            await self._storage.discard(part)

    async def complete(self, upload: MultipartUpload, listed: Sequence[tuple[int, str]]) -> str:
        """Store the listed parts as one object; return its ETag.

        Raises:
            BucketError: a part is missing, too small or another one than listed.
            OSError: the disk does not take it.
        """
        numbers = [number for number, _ in listed]
        if numbers != sorted(set(numbers)):
            raise BucketError("InvalidPartOrder", 400, "the parts must be in ascending order")
        parts = [upload.parts.get(number) for number in numbers]
        files = [part for part in parts if part is not None]
        if (
            not files
            or len(files) < len(parts)
            or [f'"{file.md5}"' for file in files] != [etag for _, etag in listed]
        ):
            raise BucketError("InvalidPart", 400, "a listed part was not uploaded")
        if any(file.size < _MIN_PART_BYTES for file in files[:-1]):
            raise BucketError(
                "EntityTooSmall", 400, "a part that is not the last one must have 5 MiB at least"
            )
        # From here on, the client cannot change the parts.
        del self._uploads[upload.id]
        digests = b"".join(bytes.fromhex(file.md5) for file in files)
        etag = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(files)}"'
        first, rest = files[0], files[1:]
        try:
            await asyncio.to_thread(_append, first, rest)
            joined = ReceivedFile(first.path, sum(file.size for file in files), first.md5)
            await self._storage.store(
                upload.bucket, upload.key, joined, etag, upload.headers, upload.started_at
            )
        except BaseException:
            await self.abort(upload)
            raise
        # Their bytes are the object's now; their counted overhead is not.
        for file in rest:
            self._storage.release(FILE_OVERHEAD_BYTES)
            await asyncio.to_thread(file.path.unlink, missing_ok=True)
        for file in upload.parts.values():
            if file not in files:
                await self._storage.discard(file)
        return etag

    async def remove_older(self, started_before: float) -> None:
        """Remove the uploads that were started before a time."""
        for upload in list(self._uploads.values()):
            if upload.started_at <= started_before:
                await self.abort(upload)


def read_part_number(text: str) -> int:
    """Return the number of a part. Raises BucketError."""
    number = parse_digits(text, max_digits=5)
    if number is None or not 1 <= number <= MAX_PARTS:
        raise BucketError(
            "InvalidArgument", 400, f"partNumber must be a number from 1 to {MAX_PARTS}"
        )
    return number


def read_part_list(body: bytes) -> list[tuple[int, str]]:
    """Return the numbers and the quoted ETags of the parts that a client lists.

    Raises BucketError.
    """
    malformed = BucketError(
        "MalformedXML", 400, "the body must be a CompleteMultipartUpload with its parts"
    )
    # No document type, so that no entity can expand.
    if b"<!DOCTYPE" in body:
        raise malformed
    try:
        root = ET.fromstring(body)  # noqa: S314
    except ET.ParseError:
        raise malformed from None
    listed = []
    for part in root:
        values = {each.tag.rpartition("}")[2]: (each.text or "").strip() for each in part}
        etag = values.get("ETag", "").strip('"')
        if not re.fullmatch("[0-9a-f]{32}", etag):
            raise BucketError("InvalidPart", 400, "a listed part was not uploaded")
        listed.append((read_part_number(values.get("PartNumber", "")), f'"{etag}"'))
    return listed


def _append(first: ReceivedFile, rest: Sequence[ReceivedFile]) -> None:
    with open(first.path, "ab") as output:
        for file in rest:
            with open(file.path, "rb") as part:
                shutil.copyfileobj(part, output, 1 << 20)

"""Receive the body of an upload into a file, in bounded memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
from collections.abc import AsyncIterator
from typing import BinaryIO

from starlette.requests import Request

from common.digits import parse_digits
from emulator.bucket.errors import BucketError
from emulator.bucket.storage import FILE_OVERHEAD_BYTES, BucketStorage, ReceivedFile
from emulator.http.request_body import received_body

# Bytes are written in blocks of this size, so that not every network read needs a thread.
_WRITE_BYTES = 1 << 20
_SHA256 = re.compile("[0-9a-f]{64}")
# The value of x-amz-content-sha256 of a body in chunks begins so. Their signatures are not
# checked: that of the headers is, and only a program on the way could change the body.
_STREAMING = "STREAMING-"
# The size line of a chunk and a trailer are shorter.
_MAX_LINE_BYTES = 16_384


async def receive_file(request: Request, storage: BucketStorage) -> ReceivedFile:
    """Write the body of a request into a file, whose space is reserved before its bytes arrive.

    Raises:
        BucketError: there is no space, or the body has another digest or size than its headers say.
        OSError: the disk does not take it.
    """
    is_streaming = request.headers.get("x-amz-content-sha256", "").startswith(_STREAMING)
    size_header = "x-amz-decoded-content-length" if is_streaming else "content-length"
    declared = parse_digits(request.headers.get(size_header, ""), max_digits=15)
    if declared is None:
        raise BucketError("MissingContentLength", 411, f"the upload needs {size_header}")
    storage.reserve(declared + FILE_OVERHEAD_BYTES)
    path = None
    try:
        path, descriptor = storage.create_upload()
        with os.fdopen(descriptor, "wb") as file:
            chunks = _read_body(request)
            decoded = _decode_chunks(chunks) if is_streaming else chunks
            size, digests = await _write(decoded, file, declared)
        if size != declared:
            raise BucketError(
                "IncompleteBody",
                400,
                f"the body has {size:,} bytes, and {size_header} {declared:,}",
            )
        digests.check(request)
        return ReceivedFile(path, size, digests.md5.hexdigest())
    except BaseException:
        storage.release(declared + FILE_OVERHEAD_BYTES)
        if path is not None:
            path.unlink(missing_ok=True)
        raise


class _Digests:
    """The digests of a body: MD5 is the ETag of an object, SHA-256 is part of the signature."""

    def __init__(self) -> None:
        self.md5 = hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """Add bytes."""
        self.md5.update(data)
        self._sha256.update(data)

    def check(self, request: Request) -> None:
        """Compare with the digests in the headers. Raises BucketError."""
        signed = request.headers.get("x-amz-content-sha256", "")
        if _SHA256.fullmatch(signed) and signed != self._sha256.hexdigest():
            raise BucketError(
                "XAmzContentSHA256Mismatch",
                400,
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )
        md5 = request.headers.get("content-md5")
        if md5 is not None and md5 != base64.b64encode(self.md5.digest()).decode():
            raise BucketError(
                "BadDigest", 400, "The Content-MD5 you specified did not match what we received."
            )


async def _write(
    chunks: AsyncIterator[bytes], file: BinaryIO, max_bytes: int
) -> tuple[int, _Digests]:
    """Write at most `max_bytes`, and a little more of a body that is too long; return the size."""
    digests, size, buffered = _Digests(), 0, bytearray()

    def write(data: bytes) -> None:
        digests.update(data)
        file.write(data)

    async for chunk in chunks:
        buffered += chunk
        size += len(chunk)
        if size > max_bytes:
            break
        if len(buffered) >= _WRITE_BYTES:
            data, buffered = bytes(buffered), bytearray()
            await asyncio.to_thread(write, data)
    write(bytes(buffered))
    return size, digests


async def _read_body(request: Request) -> AsyncIterator[bytes]:
    received = received_body(request)
    async for data in request.stream():
        if received is not None:
            # At most _WRITE_BYTES of the body are in memory.
            received.release(len(data))
        yield data


async def _decode_chunks(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the content of a body in S3's chunks (`aws-chunked`); trailers are dropped.

    A chunk is a line with its size in hexadecimal digits and options, its bytes, and a line break.
    One of size 0 is the last. Raises BucketError.
    """
    buffered = bytearray()
    # How many bytes of the chunk, with its line break, are still to come.
    pending = 0
    is_complete = False
    async for data in body:
        if is_complete:
            continue
        buffered += data
        while buffered:
            if pending:
                content = bytes(buffered[: max(0, min(pending - 2, len(buffered)))])
                taken = len(content) or min(pending, len(buffered))
                pending -= taken
                del buffered[:taken]
                if content:
                    yield content
                continue
            size = _take_chunk_size(buffered)
            if size is None:
                break
            if size == 0:
                is_complete = True
                buffered.clear()
            else:
                pending = size + 2
    if not is_complete:
        raise BucketError("IncompleteBody", 400, "the last chunk of the body is missing")


def _take_chunk_size(buffered: bytearray) -> int | None:
    """Remove the line with the size of a chunk and return the size; None for a part of a line."""
    line, separator, _ = buffered[:_MAX_LINE_BYTES].partition(b"\r\n")
    if not separator:
        if len(buffered) >= _MAX_LINE_BYTES:
            raise _bad_chunks()
        return None
    del buffered[: len(line) + 2]
    size_text = bytes(line).partition(b";")[0].strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{1,12}", size_text):
        raise _bad_chunks()
    return int(size_text, 16)


def _bad_chunks() -> BucketError:
    return BucketError("InvalidRequest", 400, "the body is not in the chunks of aws-chunked")

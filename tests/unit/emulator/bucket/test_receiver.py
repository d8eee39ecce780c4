"""Bodies of uploads: whole and in chunks, their digests, and the space that they take."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum
from starlette.requests import Request

from emulator.bucket.errors import BucketError
from emulator.bucket.receiver import receive_file
from emulator.bucket.storage import FILE_OVERHEAD_BYTES, BucketStorage, ReceivedFile

CHUNKED = (
    b"5;chunk-signature=00ff\r\nfirst\r\nA;chunk-signature=1\r\n, and again\r\n"
    b"0;chunk-signature=2\r\nx-amz-checksum-crc32:sOO8/Q==\r\n\r\n"
).replace(b"A;", b"B;")
CONTENT = b"first, and again"
STREAMING = {
    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-decoded-content-length": str(len(CONTENT)),
}


@pytest.fixture
def storage(tmp_path: Path) -> BucketStorage:
    storage = BucketStorage(tmp_path / "bucket", 100_000)
    storage.open()
    return storage


async def receive(
    storage: BucketStorage, body: bytes, headers: dict[str, str], step: int = 1_000
) -> ReceivedFile:
    pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
    messages = iter(
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    )

    async def read() -> Any:
        return next(messages)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return await receive_file(Request({"type": "http", "headers": raw}, read), storage)


def leftovers(storage: BucketStorage) -> list[str]:
    return [path.name for path in storage._folder.iterdir() if path.name.startswith(".")]


async def test_body_is_written_with_its_digest(storage: BucketStorage) -> None:
    md5 = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()  # noqa: S324
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    headers = {"content-length": "16", "content-md5": md5, "x-amz-content-sha256": sha256}
    file = await receive(storage, CONTENT, headers, step=3)
    assert file.path.read_bytes() == CONTENT
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert (file.size, file.md5) == (16, hashlib.md5(CONTENT).hexdigest())  # noqa: S324
    assert storage.used_bytes == 16 + FILE_OVERHEAD_BYTES
    await storage.discard(file)
    assert (leftovers(storage), storage.used_bytes) == ([], 0)


@pytest.mark.parametrize("step", [*range(1, 30), 1_000])
async def test_chunks_are_joined_wherever_the_network_cuts_them(
    storage: BucketStorage, step: int
) -> None:
    file = await receive(storage, CHUNKED, STREAMING, step)
    assert file.path.read_bytes() == CONTENT


async def test_chunks_of_boto3_are_joined(storage: BucketStorage) -> None:
    # boto3 sends them over HTTPS only.
    content = os.urandom(70_000)
    body = AwsChunkedWrapper(
        io.BytesIO(content),
        checksum_cls=Crc32Checksum,
        checksum_name="x-amz-checksum-crc32",
        chunk_size=16_384,
    ).read()
    headers = STREAMING | {"x-amz-decoded-content-length": "70000"}
    file = await receive(storage, body, headers, step=1_448)
    assert file.path.read_bytes() == content


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (CONTENT, {}, "MissingContentLength"),
        (CONTENT, {"content-length": "17"}, "IncompleteBody"),
        (CONTENT, {"content-length": "15"}, "IncompleteBody"),
        (CONTENT, {"content-length": "100001"}, "EntityTooLarge"),
        (CONTENT, {"content-length": "99999"}, "EntityTooLarge"),
        (CONTENT, {"content-length": "16", "content-md5": "AAAA"}, "BadDigest"),
        (
            CONTENT,
            {"content-length": "16", "x-amz-content-sha256": "0" * 64},
            "XAmzContentSHA256Mismatch",
        ),
        (CHUNKED[:-40], STREAMING | {"x-amz-decoded-content-length": "15"}, "IncompleteBody"),
        (CHUNKED.partition(b"0;")[0], STREAMING, "IncompleteBody"),
        (b"what\r\n", STREAMING, "InvalidRequest"),
        (b"5" * 20_000, STREAMING, "InvalidRequest"),
        (b"", STREAMING, "IncompleteBody"),
    ],
)
async def test_wrong_body_is_refused_and_leaves_nothing(
    storage: BucketStorage, body: bytes, headers: dict[str, str], code: str
) -> None:
    with pytest.raises(BucketError) as refused:
        await receive(storage, body, headers)
    assert refused.value.code == code
    assert (leftovers(storage), storage.used_bytes) == ([], 0)


async def test_full_bucket_refuses_an_upload_that_fits_an_empty_one(storage: BucketStorage) -> None:
    await receive(storage, b"x" * 60_000, {"content-length": "60000"})
    with pytest.raises(BucketError, match=r"0\.1 of 0\.1 MB \(BUCKET_STORE_MB\)") as refused:
        await receive(storage, b"x" * 60_000, {"content-length": "60000"})
    assert (refused.value.code, refused.value.status) == ("InsufficientStorage", 507)

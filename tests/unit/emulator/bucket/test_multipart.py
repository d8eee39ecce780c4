"""Multipart uploads: joining the parts to an object, and refused requests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from emulator.bucket import multipart
from emulator.bucket.errors import BucketError
from emulator.bucket.multipart import MultipartUploads, read_part_list, read_part_number
from emulator.bucket.storage import FILE_OVERHEAD_BYTES, BucketStorage, ReceivedFile

PART = b"0123456789"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketStorage:
    monkeypatch.setattr(multipart, "_MIN_PART_BYTES", len(PART))
    storage = BucketStorage(tmp_path / "bucket", 1_000_000)
    storage.open()
    return storage


@pytest.fixture
def uploads(storage: BucketStorage) -> MultipartUploads:
    return MultipartUploads(storage)


def receive(storage: BucketStorage, content: bytes) -> ReceivedFile:
    storage.reserve(len(content) + FILE_OVERHEAD_BYTES)
    path, descriptor = storage.create_upload()
    with open(descriptor, "wb") as file:
        file.write(content)
    return ReceivedFile(path, len(content), hashlib.md5(content).hexdigest())  # noqa: S324


def etag_of(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'  # noqa: S324


async def test_listed_parts_are_joined_to_one_object(
    storage: BucketStorage, uploads: MultipartUploads
) -> None:
    upload = uploads.find(uploads.create("b", "k", {"content-type": "x/y"}, 5.0), "b", "k")
    for number, content in ((3, b"end"), (1, b"replaced"), (1, PART), (2, b"not listed")):
        await uploads.add_part(upload, number, receive(storage, content))
    etag = await uploads.complete(upload, [(1, etag_of(PART)), (3, etag_of(b"end"))])
    assert etag.endswith('-2"')
    stored = storage.find("b", "k")
    assert stored is not None
    assert storage.content_path(stored).read_bytes() == PART + b"end"
    assert (stored.size, stored.etag, stored.headers) == (13, etag, {"content-type": "x/y"})
    assert storage.used_bytes == 13 + FILE_OVERHEAD_BYTES
    # The marker, the content and its record.
    assert len(list(storage._folder.iterdir())) == 3
    with pytest.raises(BucketError, match="no such multipart upload"):
        uploads.find(upload.id, "b", "k")


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ([], "InvalidPart"),
        ([(1, etag_of(b"x")), (3, etag_of(b"x"))], "InvalidPart"),
        ([(1, etag_of(b"y"))], "InvalidPart"),
        ([(2, etag_of(b"x")), (1, etag_of(b"x"))], "InvalidPartOrder"),
        ([(1, etag_of(b"x")), (1, etag_of(b"x"))], "InvalidPartOrder"),
        ([(1, etag_of(b"x")), (2, etag_of(b"x"))], "EntityTooSmall"),
    ],
)
async def test_wrong_list_of_parts_is_refused(
    storage: BucketStorage, uploads: MultipartUploads, listed: list[tuple[int, str]], code: str
) -> None:
    upload = uploads.find(uploads.create("b", "k", {}, 5.0), "b", "k")
    for number in (1, 2):
        await uploads.add_part(upload, number, receive(storage, b"x"))
    with pytest.raises(BucketError) as refused:
        await uploads.complete(upload, listed)
    assert refused.value.code == code
    assert storage.find("b", "k") is None
    await uploads.abort(upload)
    assert (storage.used_bytes, len(list(storage._folder.iterdir()))) == (0, 1)


async def test_part_of_an_aborted_upload_is_removed(
    storage: BucketStorage, uploads: MultipartUploads
) -> None:
    upload = uploads.find(uploads.create("b", "k", {}, 5.0), "b", "k")
    await uploads.remove_older(4.9)
    uploads.find(upload.id, "b", "k")
    await uploads.remove_older(5.0)
    with pytest.raises(BucketError, match="no such multipart upload"):
        await uploads.add_part(upload, 1, receive(storage, b"x"))
    assert storage.used_bytes == 0


def test_number_of_uploads_is_bounded(uploads: MultipartUploads) -> None:
    for _ in range(multipart._MAX_UPLOADS):
        uploads.create("b", "k", {}, 5.0)
    with pytest.raises(BucketError, match="incomplete multipart uploads"):
        uploads.create("b", "k", {}, 5.0)


def test_upload_belongs_to_its_key(uploads: MultipartUploads) -> None:
    upload_id = uploads.create("b", "k", {}, 5.0)
    for bucket, key in (("b", "other"), ("other", "k")):
        with pytest.raises(BucketError, match="no such multipart upload"):
            uploads.find(upload_id, bucket, key)


def test_part_list_is_read_with_and_without_namespace() -> None:
    part = f"<Part><ETag>{etag_of(b'x')}</ETag><PartNumber>7</PartNumber></Part>"
    for attributes in ("", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'):
        body = f"<CompleteMultipartUpload{attributes}>{part}</CompleteMultipartUpload>"
        assert read_part_list(body.encode()) == [(7, etag_of(b"x"))]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MalformedXML"),
        (b"<a>", "MalformedXML"),
        (b'<!DOCTYPE a [<!ENTITY e "x">]><a/>', "MalformedXML"),
        (b"<a><Part/></a>", "InvalidPart"),
        (b"<a><Part><ETag>x</ETag><PartNumber>1</PartNumber></Part></a>", "InvalidPart"),
    ],
)
def test_wrong_part_list_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(BucketError) as refused:
        read_part_list(body)
    assert refused.value.code == code


@pytest.mark.parametrize("text", ["", "0", "10001", "-1", "1.5", "²"])
def test_wrong_part_number_is_refused(text: str) -> None:
    with pytest.raises(BucketError, match="partNumber must be a number from 1 to 10000"):
        read_part_number(text)

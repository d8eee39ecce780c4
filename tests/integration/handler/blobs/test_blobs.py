"""Blobs: one suite for all drivers; a real server where a mock differs from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx2
import pytest
from moto import mock_aws

from handler.delivery.blobs import BlobDenied, BlobError, BlobNotFound, BlobStore, BlobUnavailable
from handler.delivery.blobs.s3 import PART_BYTES, S3Blobs, s3_client
from tests.file_blobs import FileBlobs
from tests.seaweed import Seaweed, seaweed

MB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as result:
        yield result


@pytest.fixture
def bucket(server: Seaweed, request: pytest.FixtureRequest) -> str:
    name = f"b{abs(hash(request.node.name))}"
    server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def of_server(server: Seaweed, bucket: str) -> BlobStore:
    return S3Blobs(bucket, server.client())


@pytest.fixture
def of_moto() -> Iterator[BlobStore]:
    with mock_aws():
        client = s3_client(
            region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        client.create_bucket(Bucket="bucket")
        yield S3Blobs("bucket", client)


@pytest.fixture
def of_files(tmp_path: Path) -> BlobStore:
    return FileBlobs(tmp_path)


@pytest.fixture(params=["of_files", pytest.param("of_moto", marks=pytest.mark.long), "of_server"])
def blobs(request: pytest.FixtureRequest) -> BlobStore:
    result: BlobStore = request.getfixturevalue(request.param)
    return result


def read(blobs: BlobStore, key: str) -> bytes:
    return b"".join(blobs.read(key))


def test_written_blob_is_read_back(blobs: BlobStore) -> None:
    assert blobs.write("a/b.json", b"one")
    assert read(blobs, "a/b.json") == b"one"
    assert blobs.write("a/b.json", b"two")
    assert read(blobs, "a/b.json") == b"two"
    assert blobs.write("empty", b"")
    assert read(blobs, "empty") == b""


def test_missing_blob_is_not_found(blobs: BlobStore) -> None:
    with pytest.raises(BlobNotFound, match="none"):
        read(blobs, "none")
    blobs.remove("none")


def test_removed_blob_is_not_found(blobs: BlobStore) -> None:
    blobs.write("a", b"x")
    blobs.remove("a")
    with pytest.raises(BlobNotFound):
        read(blobs, "a")


def test_only_if_absent_writes_only_missing_blobs(blobs: BlobStore) -> None:
    assert blobs.write("a", b"first", only_if_absent=True)
    assert not blobs.write("a", b"second", only_if_absent=True)
    assert not blobs.upload("a", [b"third"], only_if_absent=True)
    assert read(blobs, "a") == b"first"


@pytest.mark.parametrize("driver", ["of_files", "of_server"])
def test_only_one_of_concurrent_writers_succeeds(
    driver: str, request: pytest.FixtureRequest
) -> None:
    """Concurrent writers with `only_if_absent` write a result exactly once.

    Not on moto, where sometimes two writers succeed.
    """
    blobs: BlobStore = request.getfixturevalue(driver)
    together = threading.Barrier(8)

    def write(number: int) -> bool:
        together.wait()
        return blobs.write("raced", b"%d" % number, only_if_absent=True)

    with ThreadPoolExecutor(8) as threads:
        won = [*threads.map(write, range(8))]
    assert won.count(True) == 1
    assert read(blobs, "raced") == b"%d" % won.index(True)


def test_keys_are_listed_in_order(blobs: BlobStore) -> None:
    for key in ("in/b", "in/a/x", "in/c", "other"):
        blobs.write(key, key.encode())
    result = [*blobs.list("in/")]
    assert [(each.key, each.size) for each in result] == [("in/a/x", 6), ("in/b", 4), ("in/c", 4)]
    assert all(each.modified_s > 1_600_000_000 for each in result)
    assert [each.key for each in blobs.list()] == ["in/a/x", "in/b", "in/c", "other"]
    assert [*blobs.list("nothing")] == []


@pytest.mark.long_except("of_files-8388608", "of_moto-17825792", "of_server-8388608")
@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + MB])
def test_large_blob_is_uploaded_in_parts(blobs: BlobStore, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    assert blobs.upload("large", (content[start : start + MB] for start in range(0, size, MB)))
    assert read(blobs, "large") == content


def test_aborted_upload_leaves_no_blob(blobs: BlobStore) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * MB
        raise OSError("the source has gone")

    with pytest.raises((OSError, BlobError), match="the source has gone"):
        blobs.upload("broken", pieces())
    assert [*blobs.list()] == []
    with pytest.raises(BlobNotFound):
        read(blobs, "broken")


def test_large_upload_with_only_if_absent_does_not_replace_a_blob(blobs: BlobStore) -> None:
    blobs.write("a", b"first")
    assert not blobs.upload("a", [b"x" * MB] * 17, only_if_absent=True)
    assert read(blobs, "a") == b"first"


def test_refused_upload_leaves_no_multipart_upload(
    of_server: BlobStore, server: Seaweed, bucket: str
) -> None:
    of_server.write("a", b"first")
    of_server.upload("a", [b"x" * MB] * 17, only_if_absent=True)
    assert not server.client().list_multipart_uploads(Bucket=bucket).get("Uploads")


# ---- real server only ----


def test_link_works_without_credentials_until_it_expires(of_server: BlobStore) -> None:
    of_server.write("a", b"content")
    link = of_server.link("a", 60)
    assert httpx2.get(link).content == b"content"
    changed = link.replace("X-Amz-Expires=60", "X-Amz-Expires=6000")
    assert httpx2.get(changed).status_code == 403
    with pytest.MonkeyPatch.context() as patched:
        # Create a link as if an hour ago.
        before = datetime.now(UTC) - timedelta(hours=1)
        patched.setattr(
            "botocore.auth.get_current_datetime", lambda **_: before.replace(tzinfo=None)
        )
        expired = of_server.link("a", 60)
    assert httpx2.get(expired).status_code == 403


def test_link_of_a_file_is_its_file_url(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.write("a b", b"content")
    assert Path(url2pathname(urlsplit(blobs.link("a b", 60)).path)).read_bytes() == b"content"


Act = Callable[[BlobStore], object]
ACTS: list[Act] = [
    lambda blobs: blobs.write("a", b""),
    lambda blobs: blobs.upload("a", [b"x" * MB] * 17),
    lambda blobs: [*blobs.list()],
    lambda blobs: [*blobs.read("a")],
]


@pytest.mark.parametrize("act", ACTS)
def test_wrong_credentials_are_reported(server: Seaweed, act: Act) -> None:
    server.client().put_object(Bucket="ready", Key="a", Body=b"")
    for wrong in (server.client(key="nobody"), server.client(secret="wrong")):
        with pytest.raises(BlobDenied, match="s3://ready/") as caught:
            act(S3Blobs("ready", wrong))
        assert not caught.value.retryable


@pytest.mark.parametrize("act", ACTS)
def test_missing_credentials_are_reported(
    server: Seaweed, act: Act, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    # boto3 caches credentials, perhaps those of another test.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    with pytest.raises(BlobDenied, match="Unable to locate credentials"):
        act(S3Blobs("ready", s3_client(server.url, region_name="us-east-1")))


@pytest.mark.parametrize("act", ACTS)
def test_missing_bucket_is_not_found(act: Act) -> None:
    """Use moto: SeaweedFS creates a missing bucket on demand."""
    with mock_aws():
        job_input = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = s3_client(region_name="us-east-1", **job_input)
        with pytest.raises(BlobNotFound, match=r"s3://nobodys/.*NoSuchBucket"):
            act(S3Blobs("nobodys", client))


def test_unreachable_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    job_input: dict[str, Any] = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = s3_client("http://127.0.0.1:9", region_name="us-east-1", **job_input)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    with pytest.raises(BlobUnavailable, match="Could not connect") as caught:
        S3Blobs("bucket", client).write("a", b"")
    assert caught.value.retryable


# ---- folders only ----


@pytest.mark.parametrize("key", ["", "/etc/x", "../x", "a/../../x", "a/"])
def test_key_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(BlobError, match="is not a key"):
        FileBlobs(tmp_path / "in").write(key, b"x")
    assert [*tmp_path.iterdir()] == [tmp_path / "in"]
    assert [*(tmp_path / "in").iterdir()] == []


def test_reading_a_folder_is_unavailable(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.write("a/b", b"")
    with pytest.raises(BlobUnavailable, match="Is a directory"):
        read(blobs, "a")

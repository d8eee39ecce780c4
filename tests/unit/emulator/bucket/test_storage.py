"""Objects on the disk: restarts, replacement, and folders that are not the program's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from emulator.bucket.storage import FILE_OVERHEAD_BYTES, BucketStorage, ReceivedFile
from jobs import StoreUnavailable, StoreUnusable

HEADERS = {"content-type": "text/plain"}


def open_storage(folder: Path) -> BucketStorage:
    storage = BucketStorage(folder, 1_000_000)
    storage.open()
    return storage


async def put(storage: BucketStorage, key: str, content: bytes) -> None:
    storage.reserve(len(content) + FILE_OVERHEAD_BYTES)
    path, descriptor = storage.create_upload()
    os.write(descriptor, content)
    os.close(descriptor)
    await storage.store("b", key, ReceivedFile(path, len(content), ""), '"e"', HEADERS, 1.0)


def read(storage: BucketStorage, key: str) -> bytes | None:
    stored = storage.find("b", key)
    return None if stored is None else storage.content_path(stored).read_bytes()


async def test_objects_and_keys_survive_a_restart(tmp_path: Path) -> None:
    storage = BucketStorage(tmp_path / "new" / "bucket", 1_000_000)
    keys = storage.open()
    await put(storage, "../ä/x", b"one")
    restarted = BucketStorage(tmp_path / "new" / "bucket", 1_000_000)
    assert restarted.open() == keys
    assert read(restarted, "../ä/x") == b"one"
    assert restarted.find("b", "../ä/x") == storage.find("b", "../ä/x")
    assert restarted.used_bytes == storage.used_bytes == 3 + FILE_OVERHEAD_BYTES
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new" / "bucket").iterdir()}
    assert modes == {0o600}
    assert (tmp_path / "new" / "bucket").stat().st_mode & 0o777 == 0o700


async def test_object_replaces_the_one_with_its_key(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "bucket")
    await put(storage, "k", b"first")
    await put(storage, "k", b"second")
    assert read(storage, "k") == b"second"
    assert storage.used_bytes == 6 + FILE_OVERHEAD_BYTES
    # The marker, the content and its record.
    assert len(list((tmp_path / "bucket").iterdir())) == 3
    (stored,) = storage.objects()
    await storage.delete(stored)
    await storage.delete(stored)
    assert (read(storage, "k"), storage.used_bytes) == (None, 0)
    assert len(list((tmp_path / "bucket").iterdir())) == 1


async def test_restart_removes_only_incomplete_files(tmp_path: Path) -> None:
    folder = tmp_path / "bucket"
    storage = open_storage(folder)
    await put(storage, "k", b"content")
    await put(storage, "damaged", b"content")
    stored = storage.find("b", "damaged")
    assert stored is not None
    storage.content_path(stored).write_bytes(b"shorter")
    (folder / f"{stored.id}.json").write_text("{")
    incomplete = [".upload-0123456789abcdef", f"object-{'0' * 28}", f"object-{'1' * 28}.json.new"]
    for name in (*incomplete, "mine.json", "object-mine", "object-mine.json"):
        (folder / name).write_text("x")
    restarted = open_storage(folder)
    assert [each.key for each in restarted.objects()] == ["k"]
    left = {path.name for path in folder.iterdir()}
    assert {"mine.json", "object-mine", "object-mine.json"} <= left
    assert not left & {*incomplete, stored.id, f"{stored.id}.json"}


def test_users_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(StoreUnusable, match="was not created by this program"):
        open_storage(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match=r"bucket .*file/bucket \(beside JOB_DB\) cannot"):
        open_storage(tmp_path / "file" / "bucket")


def test_damaged_keys_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_storage(tmp_path / "bucket")
    marker = tmp_path / "bucket" / "worker-rkllm-bucket.json"
    marker.write_text("[]")
    assert BucketStorage(tmp_path / "bucket", 1).open().secret
    assert json.loads(marker.read_text())["secret"]
    assert "is damaged" in caplog.text

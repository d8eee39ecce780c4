"""The bucket as a part of the server: its start, retention and reset."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from emulator.bucket.keys import BUCKET_VARIABLES
from emulator.bucket.service import Bucket
from emulator.bucket.storage import FILE_OVERHEAD_BYTES, ReceivedFile
from tests.integration.emulator.conftest import build_settings

RETENTION_S, EXECUTION_S = 1_000, 600


async def add(bucket: Bucket, key: str, age_s: float) -> None:
    storage = bucket._storage
    storage.reserve(FILE_OVERHEAD_BYTES)
    path, descriptor = storage.create_upload()
    os.close(descriptor)
    await storage.store("b", key, ReceivedFile(path, 0, ""), '"e"', {}, time.time() - age_s)


def keys(bucket: Bucket) -> list[str]:
    return sorted(stored.key for stored in bucket._storage.objects())


async def test_objects_are_removed_after_the_result_of_their_job(tmp_path: Path) -> None:
    values = {"result_retention_s": RETENTION_S, "execution_timeout_ms": EXECUTION_S * 1000}
    bucket = Bucket(build_settings({"job_db": str(tmp_path / "jobs"), **values}))
    await bucket.start()
    await add(bucket, "young", RETENTION_S + EXECUTION_S - 60)
    await add(bucket, "old", RETENTION_S + EXECUTION_S + 60)
    bucket._uploads.create("b", "k", {}, time.time())
    await bucket.sweep()
    assert keys(bucket) == ["young"]
    assert len(bucket._uploads._uploads) == 1
    await bucket.clear()
    assert (keys(bucket), bucket._storage.used_bytes) == ([], 0)
    assert not bucket._uploads._uploads
    await bucket.close()
    # The bucket is in the folder of the job database, like the files of batches.
    assert os.listdir(tmp_path) == ["jobs.bucket"]


async def test_folder_that_cannot_be_used_leaves_the_workers_without_a_bucket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BUCKET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    mine = tmp_path / "jobs.bucket" / "mine"
    mine.parent.mkdir()
    mine.write_text("x")
    bucket = Bucket(build_settings({"job_db": str(tmp_path / "jobs")}))
    await bucket.start()
    assert bucket.worker_variables("http://127.0.0.1:8000", {}) == {}
    assert "the workers of this server get no bucket: the folder" in caplog.text
    await bucket.close()
    mine.unlink()
    await bucket.start()
    assert bucket.worker_variables("http://127.0.0.1:8000", {})
    await bucket.close()


async def test_bucket_of_jobs_in_memory_is_removed_at_the_end() -> None:
    bucket = Bucket(build_settings({"job_db": ":memory:"}))
    await bucket.start()
    folder = bucket._storage._folder
    assert folder.is_dir()
    await bucket.close()
    assert not folder.parent.exists()

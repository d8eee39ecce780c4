"""The retention sweeper deletes expired files and batches and keeps the others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emulator.batches.file_storage import FileStorage
from emulator.batches.models import BATCH_ID_PREFIX, FILE_ID_PREFIX, StoredBatch, StoredFile
from emulator.batches.repository import BatchRepository, unix_time
from emulator.batches.retention import RetentionSweeper
from tests.waiting import wait_until

RETENTION_S = 1_000


@pytest.fixture
async def repository(tmp_path: Path) -> AsyncIterator[BatchRepository]:
    opened = BatchRepository(FileStorage(tmp_path / "kept"), 1_000)
    await opened.open()
    yield opened
    opened.close()


async def add_file(repository: BatchRepository, expires_in_s: int | None) -> StoredFile:
    expires_at = None if expires_in_s is None else unix_time() + expires_in_s
    file = StoredFile(
        id=repository.new_id(FILE_ID_PREFIX),
        bytes=1,
        created_at=1,
        filename="a",
        purpose="batch",
        expires_at=expires_at,
    )
    repository.storage.content_path(file.id).write_bytes(b"x")
    await repository.add_file(file)
    return file


async def add_batch(repository: BatchRepository, file: StoredFile, created_at: int) -> StoredBatch:
    batch = StoredBatch(
        id=repository.new_id(BATCH_ID_PREFIX),
        endpoint="/v1/completions",
        input_file_id=file.id,
        created_at=created_at,
        expires_at=created_at,
        model="little",
    )
    await repository.add_batch(batch)
    return batch


async def test_sweep_deletes_expired_batches_and_files_that_no_batch_needs(
    repository: BatchRepository,
) -> None:
    expired, unexpired, unlimited, needed = [
        await add_file(repository, each) for each in (-1, 60, None, -1)
    ]
    old = unix_time() - RETENTION_S - 10
    unfinished = await add_batch(repository, needed, old)
    ended, recent = (
        await add_batch(repository, unexpired, old),
        await add_batch(repository, unexpired, unix_time()),
    )
    for each in (ended, recent):
        await repository.update_batch(
            each.id, lambda batch, at: batch.fail_input_lost("no", batch.created_at)
        )
    await RetentionSweeper(repository, RETENTION_S).sweep()
    assert repository.files == [unexpired, unlimited, needed]
    assert [each.id for each in repository.batches] == [unfinished.id, recent.id]
    assert not repository.storage.content_path(expired.id).exists()
    await repository.update_batch(unfinished.id, lambda batch, at: batch.fail_input_lost("no", at))
    await RetentionSweeper(repository, RETENTION_S).sweep()
    assert repository.files == [unexpired, unlimited]


async def test_sweep_ignores_jumps_of_the_system_clock(
    repository: BatchRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await add_file(repository, 60)
    batch = await add_batch(repository, file, unix_time())
    await repository.update_batch(batch.id, lambda batch, at: batch.fail_input_lost("no", at))
    sweeper = RetentionSweeper(repository, RETENTION_S)
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real + 1e9)
    await sweeper.sweep()
    assert (repository.files, len(repository.batches)) == ([file], 1)


async def test_sweeper_sweeps_periodically(repository: BatchRepository) -> None:
    sweeper = RetentionSweeper(repository, RETENTION_S, interval_s=0.01)
    sweeper.start()
    await add_file(repository, -1)
    await wait_until(lambda: repository.files == [])
    await sweeper.close()

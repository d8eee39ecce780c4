"""What is forgotten when its time is over, and what is not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emulator.batches.batch import PREFIX as BATCH
from emulator.batches.batch import StoredBatch
from emulator.batches.file import PREFIX as FILE
from emulator.batches.file import StoredFile
from emulator.batches.file_storage import Folder
from emulator.batches.repository import BatchStore, now
from emulator.batches.retention import Sweeper
from tests.waiting import wait_until

KEPT_S = 1_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BatchStore]:
    found = BatchStore(Folder(tmp_path / "kept"), 1_000)
    await found.open()
    yield found
    found.close()


async def add(store: BatchStore, expires_in_s: int | None) -> StoredFile:
    expires_at = None if expires_in_s is None else now() + expires_in_s
    file = StoredFile(
        id=store.new_id(FILE),
        bytes=1,
        created_at=1,
        filename="a",
        purpose="batch",
        expires_at=expires_at,
    )
    store.folder.bytes_of(file.id).write_bytes(b"x")
    await store.add_file(file)
    return file


async def begin(store: BatchStore, file: StoredFile, created_at: int) -> StoredBatch:
    batch = StoredBatch(
        id=store.new_id(BATCH),
        endpoint="/v1/completions",
        input_file_id=file.id,
        created_at=created_at,
        expires_at=created_at,
        model="little",
    )
    await store.add_batch(batch)
    return batch


async def test_what_has_expired_goes_and_what_is_needed_stays(store: BatchStore) -> None:
    gone, stays, for_ever, needed = [await add(store, each) for each in (-1, 60, None, -1)]
    old = now() - KEPT_S - 10
    waits = await begin(store, needed, old)
    ended, lately = await begin(store, stays, old), await begin(store, stays, now())
    for each in (ended, lately):
        await store.change(each.id, lambda batch, at: batch.lose("no", batch.created_at))
    await Sweeper(store, KEPT_S).sweep()
    assert store.files == [stays, for_ever, needed]
    assert [each.id for each in store.batches] == [waits.id, lately.id]
    assert not store.folder.bytes_of(gone.id).exists()
    await store.change(waits.id, lambda batch, at: batch.lose("no", at))
    await Sweeper(store, KEPT_S).sweep()
    assert store.files == [stays, for_ever]


async def test_a_clock_that_jumps_takes_nothing_along(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await add(store, 60)
    batch = await begin(store, file, now())
    await store.change(batch.id, lambda batch, at: batch.lose("no", at))
    sweeper = Sweeper(store, KEPT_S)
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real + 1e9)
    await sweeper.sweep()
    assert (store.files, len(store.batches)) == ([file], 1)


async def test_it_looks_by_itself(store: BatchStore) -> None:
    sweeper = Sweeper(store, KEPT_S, every_s=0.01)
    sweeper.start()
    await add(store, -1)
    await wait_until(lambda: store.files == [])
    await sweeper.close()

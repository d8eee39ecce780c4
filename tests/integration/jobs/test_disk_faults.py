"""Unusable databases, and disks that refuse writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.failpoints import MARKER_VARIABLE, NAME_VARIABLE
from jobs import JobStatus, MemoryJobStore, SqliteJournal, StoreUnavailable
from jobs.sqlite import client
from jobs.sqlite import journal as module
from jobs.sqlite.schema import SCHEMA_VERSION
from tests.integration.jobs.stores import SOON_S, Stores, begin, job_of, new, soon, take
from tests.waiting import wait_until

# Larger than the space that is left on a disk that is nearly full.
LARGE_INPUT = "x" * 300_000


async def open_refused(path: Path) -> str:
    """Return the error of a store that cannot open a database."""
    journal = SqliteJournal(path, lock_wait_s=0.1)
    store = MemoryJobStore(journal=journal)
    with pytest.raises(StoreUnavailable) as caught:
        await store.start()
    assert journal.pid is None
    await store.close()
    return str(caught.value)


async def test_second_server_on_a_database_is_refused(disk: Stores) -> None:
    store = await disk.open()
    message = await open_refused(disk.path)
    assert message == "the job database jobs.sqlite3 cannot be used: another server uses it"
    await store.enqueue(new())


async def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.write_bytes(b"something else entirely" * 1000)
    assert await open_refused(path) == (
        "the job database jobs.sqlite3 cannot be used: file is not a database"
    )
    assert path.read_bytes().startswith(b"something else")


async def test_a_database_of_a_later_version_is_refused(disk: Stores) -> None:
    await disk.open()
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert (
        f"it has version {SCHEMA_VERSION + 1}, and this server knows {SCHEMA_VERSION}"
        in await open_refused(disk.path)
    )


async def test_damaged_database_is_refused(disk: Stores) -> None:
    store = await disk.open()
    for number in range(50):
        await store.enqueue(new("x" * 2000 + str(number)))
    await disk.close()
    raw = bytearray(disk.path.read_bytes())
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    disk.path.write_bytes(raw)
    assert "it is damaged" in await open_refused(disk.path)


@pytest.mark.long_except(
    "endpoint = CAST(x'fffe41' AS TEXT)",
    "state = 'not JSON'",
    "state = json_remove(state, '$.policy')",
)
@pytest.mark.parametrize(
    "damage",
    [
        "status = 'LOST_IN_SPACE'",
        "state = 'not JSON'",
        "state = '[]'",
        "state = json_remove(state, '$.policy')",
        "state = json_set(state, '$.attempt', 'three')",
        "state = json_set(state, '$.extra', 7)",
        # Text that is not UTF-8: by default Python's driver stops reading at such a row.
        "state = CAST(x'fffe41' AS TEXT)",
        "endpoint = CAST(x'fffe41' AS TEXT)",
    ],
)
async def test_damaged_row_is_set_aside_and_the_rest_is_served(
    disk: Stores, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await disk.open()
    queued_jobs = [await store.enqueue(new(number)) for number in range(3)]
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database, database:
        database.execute(f"UPDATE jobs SET {damage} WHERE id = ?", (queued_jobs[2].id,))  # noqa: S608
        database.text_factory = bytes
        before = database.execute("SELECT * FROM jobs WHERE number = 3").fetchone()
    reopened = await disk.open()
    assert [job.id for job in await reopened.list_recent_jobs("e", 10)] == [
        queued_jobs[1].id,
        queued_jobs[0].id,
    ]
    assert disk.journals[-1].set_aside == [queued_jobs[2].id]
    assert f"job {queued_jobs[2].id} (row 3) is damaged and set aside" in caplog.text
    await reopened.enqueue(new())
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        database.text_factory = bytes
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (4,)
        assert database.execute("SELECT * FROM jobs WHERE number = 3").fetchone() == before


async def test_database_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in await open_refused(tmp_path / "nowhere" / "jobs.sqlite3")


@pytest.mark.long_except("store-loaded")
@pytest.mark.parametrize("failpoint", ["store-opened", "store-loading", "store-loaded"])
async def test_store_process_killed_during_start_is_replaced(
    disk: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    store = await disk.open()
    queued_jobs = [await store.enqueue(new(number)) for number in range(3)]
    await disk.close()
    mark = tmp_path / "killed"
    monkeypatch.setenv(NAME_VARIABLE, failpoint)
    monkeypatch.setenv(MARKER_VARIABLE, str(mark))
    reopened = await disk.open()
    # The last of these failpoints is passed after the store has received all jobs.
    await wait_until(mark.exists)
    assert {(await take(reopened)).id for _ in queued_jobs} == {job.id for job in queued_jobs}
    # Writes work as well.
    assert await reopened.ack(queued_jobs[0].id, 1, output=b"1")


async def test_database_is_refused_when_all_store_processes_die_loading_it(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.open()
    await disk.close()
    monkeypatch.setenv(NAME_VARIABLE, "store-loading")
    assert await open_refused(disk.path) == (
        "the job database jobs.sqlite3 was not read: 3 store processes ended while they read it"
    )


async def test_closed_store_raises_store_unavailable(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new())
    await disk.close()
    for work in (store.enqueue(new()), store.cancel(queued_job.id)):
        with pytest.raises(StoreUnavailable, match="not open"):
            await asyncio.wait_for(work, SOON_S)


@asynccontextmanager
async def database_locked(disk: Stores) -> AsyncIterator[None]:
    """Another process holds the write lock of the database."""
    with contextlib.closing(sqlite3.connect(disk.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def full(disk: Stores) -> AsyncIterator[None]:
    """The store process may not extend any file."""
    pid = disk.journals[-1].pid
    assert pid is not None
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@asynccontextmanager
async def unusable(disk: Stores) -> AsyncIterator[None]:
    """The store process is killed, and later ones cannot open the database."""
    journal = disk.journals[-1]
    assert journal.pid is not None
    with a_folder_instead(disk.path):
        os.kill(journal.pid, signal.SIGKILL)
        yield


@contextmanager
def a_folder_instead(path: Path) -> Iterator[None]:
    # Even root cannot open a folder for writing.
    moved = path.with_suffix(".aside")
    for each in ("", "-wal"):
        if Path(f"{path}{each}").exists():
            os.rename(f"{path}{each}", f"{moved}{each}")
    path.mkdir()
    yield
    path.rmdir()
    for each in ("", "-wal"):
        if Path(f"{moved}{each}").exists():
            os.rename(f"{moved}{each}", f"{path}{each}")


FAULTS = {"busy": database_locked, "full": full, "unusable": unusable}


@pytest.mark.long_except("unusable", "full")
@pytest.mark.parametrize("fault", FAULTS)
async def test_refused_operations_change_nothing_and_succeed_after_the_fault(
    disk: Stores, fault: str
) -> None:
    store = await disk.open()
    waits, ends, fails = [await store.enqueue(new(number)) for number in range(3)]
    _, ending, failing = await store.receive("e", "w", lease_s=1000, limit=3)
    await store.nack(waits.id, 1)
    await store.ack(failing.id, 1, error="no")
    waits = await job_of(store, waits.id)
    before = {job.id: job for job in await store.list_recent_jobs("e", 10)}
    disk.ended.clear()
    async with FAULTS[fault](disk):
        async with asyncio.timeout(3 * SOON_S):
            results = await asyncio.gather(
                store.enqueue(new(LARGE_INPUT)),
                store.cancel(waits.id),
                store.ack(ends.id, 1, output=LARGE_INPUT.encode()),
                store.retry(fails.id),
                return_exceptions=True,
            )
        for each in results:
            assert isinstance(each, StoreUnavailable), each
            assert "jobs.sqlite3" in str(each)
        assert {job.id: job for job in await store.list_recent_jobs("e", 10)} == before
        assert disk.journals[-1].write_error is not None
        # Operations that do not wait for the disk continue.
        await store.enqueue(new("sync", sync=True))
        assert await store.append_chunks(ending.id, 1, [b"1"])
        assert disk.ended == []
        assert await store.receive_stops("w", 0) == []
    async with asyncio.timeout(3 * SOON_S):
        while True:
            # The first attempts may come before the journal has retried its batch.
            with contextlib.suppress(StoreUnavailable):
                stored_job = await store.enqueue(new(LARGE_INPUT))
                break
        assert await store.ack(ends.id, 1, output=b'"again"')
        await store.retry(fails.id)
        await store.cancel(waits.id)
    assert disk.journals[-1].write_error is None
    await disk.close()
    reopened = await disk.open()
    states = {job.id: job.status for job in await reopened.list_recent_jobs("e", 10)}
    assert states == {
        waits.id: JobStatus.CANCELLED,
        ends.id: JobStatus.COMPLETED,
        fails.id: JobStatus.IN_QUEUE,
        stored_job.id: JobStatus.IN_QUEUE,
    }
    assert (await job_of(reopened, ends.id)).output == b'"again"'
    assert [chunk.value for chunk in await reopened.read_chunks(ends.id, (0, 0), 0)] == [b"1"]


async def test_jobs_refused_by_a_full_disk_leave_no_state(disk: Stores) -> None:
    store = await disk.open()
    journal = disk.journals[-1]
    async with full(disk):
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                await store.enqueue(new(LARGE_INPUT))
        assert store._state.table.total_bytes == 0
        assert not journal._pending.jobs
        assert not journal._pending.deleted
        assert not journal._row_numbers
        assert not journal._on_disk


async def test_cancelled_enqueue_on_a_full_disk_does_not_block_other_jobs(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    client_ = disk.journals[-1]._client
    write_batch, is_sent = client_.write_batch, asyncio.Event()

    async def recording(frame: bytes, number: int) -> Any:
        is_sent.set()
        return await write_batch(frame, number)

    monkeypatch.setattr(client_, "write_batch", recording)
    async with full(disk):
        sending = asyncio.create_task(store.enqueue(new(LARGE_INPUT)))
        await is_sent.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            await store.enqueue(new(LARGE_INPUT))
    async with asyncio.timeout(3 * SOON_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                stored_job = await store.enqueue(new())
                break
    await disk.close()
    assert [job.id for job in await (await disk.open()).list_recent_jobs("e", 10)] == [
        stored_job.id
    ]


async def test_timeout_refused_by_a_full_disk_is_retried(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new(execution_timeout_ms=5_000))
    await take(store, lease_s=1000)
    await store.cancel((await store.enqueue(new())).id)
    async with full(disk):
        disk.clock.tick(6)
        # Too large for the space that is left in the log.
        await store.append_chunks(queued_job.id, 1, [LARGE_INPUT.encode()])
        with pytest.raises(StoreUnavailable):
            await store.sweep()
        assert (await job_of(store, queued_job.id)).status is JobStatus.IN_PROGRESS
    await disk.pass_time(store, 2)
    assert (await job_of(store, queued_job.id)).status is JobStatus.TIMED_OUT


async def test_append_chunks_waits_while_too_much_is_unwritten(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 1_000_000)
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    async with full(disk):
        with pytest.raises(StoreUnavailable):
            await store.enqueue(new(LARGE_INPUT))
        streaming = asyncio.create_task(store.append_chunks(job.id, 1, [b"x" * 2_000_000]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(streaming), 0.3)
    assert await soon(streaming)


async def test_stopped_store_process_is_replaced(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk hangs, callers get an error without waiting for the process to end."""
    monkeypatch.setattr(client, "_BATCH_TIMEOUT_S", 0.5)
    store = await disk.open()
    pid = disk.journals[-1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match=r"was not written in 0\.5 s"):
        await asyncio.wait_for(store.enqueue(new()), SOON_S)
    monkeypatch.setattr(client, "_BATCH_TIMEOUT_S", 10.0)
    await asyncio.wait_for(store.enqueue(new()), SOON_S)
    assert disk.journals[-1].pid != pid


async def test_close_is_bounded_in_time_when_the_disk_refuses_writes(
    disk: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.5)
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    async with database_locked(disk):
        acking = await begin(store.ack(job.id, 1, output=b"1"))
        await disk.close()
        with pytest.raises(StoreUnavailable):
            await soon(acking)
    assert "was not written to the end" in caplog.text
    reopened = await disk.open(lambda worker_id: True)
    assert (await job_of(reopened, job.id)).status is not JobStatus.COMPLETED


async def test_store_is_unavailable_when_its_process_cannot_be_started(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    journal = disk.journals[-1]
    assert journal.pid is not None

    def raise_error(*_: object, **__: object) -> None:
        raise OSError("Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", raise_error)
        os.kill(journal.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match="cannot be started: Resource temporarily"):
            await asyncio.wait_for(store.enqueue(new()), SOON_S)
    await asyncio.wait_for(store.enqueue(new()), SOON_S)


async def test_invalid_unicode_in_a_job_does_not_block_others(disk: Stores) -> None:
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    await asyncio.wait_for(store.ack(job.id, 1, error="half \ud800 a pair"), SOON_S)
    await asyncio.wait_for(store.enqueue(new(endpoint="\ud800", extra=b"\xff")), SOON_S)
    await disk.close()
    reopened = await disk.open()
    assert (await job_of(reopened, job.id)).error == "half \ud800 a pair"


async def test_store_serves_jobs_when_the_disk_refuses_writes_at_the_start(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    lost = await store.enqueue(new())
    await take(store)
    waits = await store.enqueue(new())
    await disk.close()
    async with database_locked(disk):
        # The lost job must become FAILED, but the disk refuses the write.
        reopened = await disk.open(max_losses=1)
        assert (await job_of(reopened, lost.id)).status is JobStatus.IN_PROGRESS
        assert (await take(reopened)).id == waits.id
    async with asyncio.timeout(3 * SOON_S):
        while not reopened.count_by_status().get(JobStatus.FAILED):
            with contextlib.suppress(StoreUnavailable):
                await disk.pass_time(reopened, 31)
    assert (await job_of(reopened, lost.id)).status is JobStatus.FAILED


async def test_unexpected_error_of_a_batch_does_not_stop_the_next_batch(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()

    def broken(*_: object) -> bytes:
        raise RuntimeError("an unexpected error")

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", broken)
        with pytest.raises(StoreUnavailable, match="an unexpected error"):
            await asyncio.wait_for(store.enqueue(new()), SOON_S)
    stored_job = await asyncio.wait_for(store.enqueue(new()), SOON_S)
    await disk.close()
    assert [job.id for job in await (await disk.open()).list_recent_jobs("e", 10)] == [
        stored_job.id
    ]

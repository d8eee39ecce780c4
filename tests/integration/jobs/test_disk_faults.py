"""Databases that cannot be used, and disks that stop taking what they are given."""

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

from jobs import JobStatus, MemoryJobStore, SqliteJournal, StoreUnavailable
from jobs.failpoints import MARKER_VARIABLE, NAME_VARIABLE
from jobs.sqlite import client
from jobs.sqlite import journal as module
from jobs.sqlite.schema import SCHEMA_VERSION
from tests.integration.jobs.stores import SOON_S, Stores, begin, job_of, new, soon, take
from tests.waiting import wait_until

# Some hundred kilobytes: what does not fit in what is left of a small disk.
MUCH = "x" * 300_000


async def refused(path: Path) -> str:
    """Return why a database is not opened."""
    journal = SqliteJournal(path, lock_wait_s=0.1)
    store = MemoryJobStore(journal=journal)
    with pytest.raises(StoreUnavailable) as said:
        await store.start()
    assert journal.pid is None
    await store.close()
    return str(said.value)


async def test_a_second_server_on_one_database_is_refused(disk: Stores) -> None:
    store = await disk.open()
    said = await refused(disk.path)
    assert said == "the job database jobs.sqlite3 cannot be used: another server uses it"
    await store.enqueue(new())


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.write_bytes(b"something else entirely" * 1000)
    assert await refused(path) == (
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
        in await refused(disk.path)
    )


async def test_a_damaged_database_is_refused(disk: Stores) -> None:
    store = await disk.open()
    for number in range(50):
        await store.enqueue(new("x" * 2000 + str(number)))
    await disk.close()
    raw = bytearray(disk.path.read_bytes())
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    disk.path.write_bytes(raw)
    assert "it is damaged" in await refused(disk.path)


@pytest.mark.parametrize(
    "damage",
    [
        "status = 'LOST_IN_SPACE'",
        "state = 'not JSON'",
        "state = '[]'",
        "state = json_remove(state, '$.policy')",
        "state = json_set(state, '$.attempt', 'three')",
        "state = json_set(state, '$.extra', 7)",
        # Text that is not UTF-8: SQLite's own driver would end the whole reading.
        "state = CAST(x'fffe41' AS TEXT)",
        "endpoint = CAST(x'fffe41' AS TEXT)",
    ],
)
async def test_damaged_row_is_set_aside_and_the_rest_is_served(
    disk: Stores, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await disk.open()
    sent = [await store.enqueue(new(number)) for number in range(3)]
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database, database:
        database.execute(f"UPDATE jobs SET {damage} WHERE id = ?", (sent[2].id,))  # noqa: S608
        database.text_factory = bytes
        before = database.execute("SELECT * FROM jobs WHERE number = 3").fetchone()
    again = await disk.open()
    assert [job.id for job in await again.list_recent_jobs("e", 10)] == [sent[1].id, sent[0].id]
    assert disk.journals[-1].set_aside == [sent[2].id]
    assert f"job {sent[2].id} (row 3) is damaged and set aside" in caplog.text
    await again.enqueue(new())
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        database.text_factory = bytes
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (4,)
        assert database.execute("SELECT * FROM jobs WHERE number = 3").fetchone() == before


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in await refused(tmp_path / "nowhere" / "jobs.sqlite3")


@pytest.mark.parametrize("place", ["store-opened", "store-loading", "store-loaded"])
async def test_a_store_process_that_dies_while_the_store_starts_is_replaced(
    disk: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store = await disk.open()
    sent = [await store.enqueue(new(number)) for number in range(3)]
    await disk.close()
    mark = tmp_path / "killed"
    monkeypatch.setenv(NAME_VARIABLE, place)
    monkeypatch.setenv(MARKER_VARIABLE, str(mark))
    again = await disk.open()
    # The last of these places is passed after it was said that all is loaded.
    await wait_until(mark.exists)
    assert {(await take(again)).id for _ in sent} == {job.id for job in sent}
    # And it is written as ever.
    assert await again.ack(sent[0].id, 1, output=b"1")


async def test_a_database_that_no_store_process_survives_is_refused(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.open()
    await disk.close()
    monkeypatch.setenv(NAME_VARIABLE, "store-loading")
    assert await refused(disk.path) == (
        "the job database jobs.sqlite3 was not read: 3 store processes have ended over it"
    )


async def test_a_store_that_is_closed_says_so(disk: Stores) -> None:
    store = await disk.open()
    sent = await store.enqueue(new())
    await disk.close()
    for work in (store.enqueue(new()), store.cancel(sent.id)):
        with pytest.raises(StoreUnavailable, match="not open"):
            await asyncio.wait_for(work, SOON_S)


@asynccontextmanager
async def busy(disk: Stores) -> AsyncIterator[None]:
    """Somebody else writes, and does not come to an end."""
    with contextlib.closing(sqlite3.connect(disk.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def full(disk: Stores) -> AsyncIterator[None]:
    """The store process may make no file longer than its log is by now."""
    pid = disk.journals[-1].pid
    assert pid is not None
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@asynccontextmanager
async def unusable(disk: Stores) -> AsyncIterator[None]:
    """The store process dies, and those that follow find no database they can open."""
    journal = disk.journals[-1]
    assert journal.pid is not None
    with a_folder_instead(disk.path):
        os.kill(journal.pid, signal.SIGKILL)
        yield


@contextmanager
def a_folder_instead(path: Path) -> Iterator[None]:
    # Even the root, who may write to any file, cannot open a folder for writing.
    aside = path.with_suffix(".aside")
    for each in ("", "-wal"):
        if Path(f"{path}{each}").exists():
            os.rename(f"{path}{each}", f"{aside}{each}")
    path.mkdir()
    yield
    path.rmdir()
    for each in ("", "-wal"):
        if Path(f"{aside}{each}").exists():
            os.rename(f"{aside}{each}", f"{path}{each}")


FAULTS = {"busy": busy, "full": full, "unusable": unusable}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_the_disk_refuses_has_not_happened_and_works_again_afterwards(
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
            said = await asyncio.gather(
                store.enqueue(new(MUCH)),
                store.cancel(waits.id),
                store.ack(ends.id, 1, output=MUCH.encode()),
                store.retry(fails.id),
                return_exceptions=True,
            )
        for each in said:
            assert isinstance(each, StoreUnavailable), each
            assert "jobs.sqlite3" in str(each)
        assert {job.id: job for job in await store.list_recent_jobs("e", 10)} == before
        assert disk.journals[-1].write_error is not None
        # What nobody waits for goes on.
        await store.enqueue(new("sync", sync=True))
        assert await store.append_chunks(ending.id, 1, [b"1"])
        assert disk.ended == []
        assert await store.receive_stops("w", 0) == []
    async with asyncio.timeout(3 * SOON_S):
        while True:
            # The first may come before the fault is seen to be over.
            with contextlib.suppress(StoreUnavailable):
                kept = await store.enqueue(new(MUCH))
                break
        assert await store.ack(ends.id, 1, output=b'"again"')
        await store.retry(fails.id)
        await store.cancel(waits.id)
    assert disk.journals[-1].write_error is None
    await disk.close()
    again = await disk.open()
    states = {job.id: job.status for job in await again.recent("e", 10)}
    assert states == {
        waits.id: JobStatus.CANCELLED,
        ends.id: JobStatus.COMPLETED,
        fails.id: JobStatus.IN_QUEUE,
        kept.id: JobStatus.IN_QUEUE,
    }
    assert (await job_of(again, ends.id)).output == b'"again"'
    assert [chunk.value for chunk in await again.read(ends.id, (0, 0), 0)] == [b"1"]


async def test_a_job_refused_by_a_disk_that_stays_broken_is_not_kept(disk: Stores) -> None:
    store = await disk.open()
    journal = disk.journals[-1]
    async with full(disk):
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                await store.enqueue(new(MUCH))
        assert store._state.table.total_bytes == 0
        assert not journal._pending.jobs
        assert not journal._pending.deleted
        assert not journal._row_numbers
        assert not journal._on_disk


async def test_a_job_that_was_given_up_on_its_way_to_a_full_disk_stops_no_other(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    link = disk.journals[-1]._client
    deliver, on_its_way = link.write_batch, asyncio.Event()

    async def watched(frame: bytes, number: int) -> Any:
        on_its_way.set()
        return await deliver(frame, number)

    monkeypatch.setattr(link, "write_batch", watched)
    async with full(disk):
        sending = asyncio.create_task(store.enqueue(new(MUCH)))
        await on_its_way.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            await store.enqueue(new(MUCH))
    async with asyncio.timeout(3 * SOON_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                kept = await store.enqueue(new())
                break
    await disk.close()
    assert [job.id for job in await (await disk.open()).list_recent_jobs("e", 10)] == [kept.id]


async def test_time_that_ends_a_job_is_kept_when_the_disk_is_back(disk: Stores) -> None:
    store = await disk.open()
    sent = await store.enqueue(new(execution_timeout_ms=5_000))
    await take(store, lease_s=1000)
    await store.cancel((await store.enqueue(new())).id)
    async with full(disk):
        disk.clock.tick(6)
        # Enough that it does not fit in what its log has left.
        await store.append_chunks(sent.id, 1, [MUCH.encode()])
        with pytest.raises(StoreUnavailable):
            await store.sweep()
        assert (await job_of(store, sent.id)).status is JobStatus.IN_PROGRESS
    await disk.pass_time(store, 2)
    assert (await job_of(store, sent.id)).status is JobStatus.TIMED_OUT


async def test_whoever_streams_waits_while_too_much_is_unwritten(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 1_000_000)
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    async with full(disk):
        with pytest.raises(StoreUnavailable):
            await store.enqueue(new(MUCH))
        streaming = asyncio.create_task(store.append_chunks(job.id, 1, [b"x" * 2_000_000]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(streaming), 0.3)
    assert await soon(streaming)


async def test_a_store_process_that_stands_still_is_given_up(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs: whoever waits is told so, and nothing waits for the process to die."""
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


async def test_closing_is_bounded_when_the_disk_refuses(
    disk: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.5)
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    async with busy(disk):
        acking = await begin(store.ack(job.id, 1, output=b"1"))
        before = asyncio.get_running_loop().time()
        await disk.close()
        assert asyncio.get_running_loop().time() - before < 3
        with pytest.raises(StoreUnavailable):
            await soon(acking)
    assert "was not written to the end" in caplog.text
    again = await disk.open(lambda worker_id: True)
    assert (await job_of(again, job.id)).status is not JobStatus.COMPLETED


async def test_a_store_process_that_cannot_be_started_is_unavailable(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    journal = disk.journals[-1]
    assert journal.pid is not None

    def no_room(*_: object, **__: object) -> None:
        raise OSError("Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_room)
        os.kill(journal.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match="cannot be started: Resource temporarily"):
            await asyncio.wait_for(store.enqueue(new()), SOON_S)
    await asyncio.wait_for(store.enqueue(new()), SOON_S)


async def test_a_text_that_is_no_unicode_does_not_stop_the_others(disk: Stores) -> None:
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    await asyncio.wait_for(store.ack(job.id, 1, error="half \ud800 a pair"), SOON_S)
    await asyncio.wait_for(store.enqueue(new(endpoint="\ud800", extra=b"\xff")), SOON_S)
    await disk.close()
    again = await disk.open()
    assert (await job_of(again, job.id)).error == "half \ud800 a pair"


async def test_disk_that_refuses_at_the_start_keeps_nothing_from_being_served(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()
    lost = await store.enqueue(new())
    await take(store)
    waits = await store.enqueue(new())
    await disk.close()
    async with busy(disk):
        # The lost job has to end as FAILED, and the disk does not take that.
        again = await disk.open(max_losses=1)
        assert (await job_of(again, lost.id)).status is JobStatus.IN_PROGRESS
        assert (await take(again)).id == waits.id
    async with asyncio.timeout(3 * SOON_S):
        while not await again.list_dead_letters("e"):
            with contextlib.suppress(StoreUnavailable):
                await disk.pass_time(again, 31)
    assert (await job_of(again, lost.id)).status is JobStatus.FAILED


async def test_a_batch_that_cannot_be_sent_for_any_reason_is_refused_and_the_next_goes_out(
    disk: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await disk.open()

    def broken(*_: object) -> bytes:
        raise RuntimeError("nobody has thought of this")

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", broken)
        with pytest.raises(StoreUnavailable, match="nobody has thought of this"):
            await asyncio.wait_for(store.enqueue(new()), SOON_S)
    kept = await asyncio.wait_for(store.enqueue(new()), SOON_S)
    await disk.close()
    assert [job.id for job in await (await disk.open()).list_recent_jobs("e", 10)] == [kept.id]

"""Recovery of a store after a regular stop or a kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs import Chunk, JobStatus
from jobs.memory.job_record import RESUME_NUMBER_GAP
from jobs.sqlite.client import StoreClient
from jobs.sqlite.frames import encode
from tests.integration.jobs.stores import SOON_S, Stores, job_of, new, soon, take
from tests.waiting import run_ready_tasks

PRODUCERS = 20
SERVER = """
import asyncio, pathlib, sys
from jobs import MemoryJobStore, NewJob, SqliteJournal

async def main():
    journal = SqliteJournal(pathlib.Path(sys.argv[1]))
    store = MemoryJobStore(journal=journal)
    await store.start()
    print(journal.pid, flush=True)
    async def send():
        while True:
            job = await store.enqueue(NewJob(endpoint="e", input=b"1"))
            print(job.id, flush=True)
    await asyncio.gather(*(send() for _ in range(8)))

asyncio.run(main())
"""


async def test_jobs_of_every_status_are_recovered(disk: Stores) -> None:
    store = await disk.open(max_losses=2)
    for number in range(6):
        await store.enqueue(new(number, webhook="http://x/", extra=b'{"a":1}', ttl_ms=10**7))
        disk.clock.tick(1)
    done, broken, lost, running = await store.receive("e", "w", lease_s=30, limit=4)
    await store.ack(done.id, 1, output=b'{"o":1}')
    await store.ack(broken.id, 1, error="no")
    await store.nack(lost.id, 1, "killed")
    await store.save_progress(running.id, 1, b'"half"')
    waiting_id, cancelled_id = [job.id for job in await store.list_recent_jobs("e", 2)][::-1]
    await store.cancel(cancelled_id)
    await store.mark_webhook_sent(cancelled_id)
    before = {job.id: job for job in await store.list_recent_jobs("e", 10)}
    stats = await store.stats("e")
    assert stats.retried == 1
    await disk.close()
    disk.ended.clear()
    reopened = await disk.open(lambda worker_id: True)
    assert {job.id: job for job in await reopened.list_recent_jobs("e", 10)} == before
    assert await reopened.stats("e") == stats
    assert [job.id for job in reopened.list_leased_jobs("w")] == [running.id]
    # `on_ended` is called again only for jobs whose webhook was not sent.
    assert [job.id for job in disk.ended] == [done.id, broken.id]
    assert [(await take(reopened)).id for _ in "ab"] == [lost.id, waiting_id]
    assert await reopened.ack(running.id, 1, output=b"1")


async def test_job_of_a_worker_that_ended_with_the_server_waits_again(disk: Stores) -> None:
    store = await disk.open(max_losses=2)
    for number in range(3):
        await store.enqueue(new(number))
        disk.clock.tick(1)
    relost = await take(store, "local")
    await store.nack(relost.id, 1, "once")
    for name in ("local", "local", "far"):
        await take(store, name)
    for kills in range(1, 5):
        await disk.close()
        reopened = await disk.open(lambda worker_id: worker_id == "far", max_losses=2)
        assert len(reopened.list_leased_jobs("far")) == 1
        assert reopened.list_leased_jobs("local") == []
        waiting = [await take(reopened, "local") for _ in "ab"]
        # Only the loss of a worker counts, and not that of the server.
        assert [(job.attempt, job.lost_attempts) for job in waiting] == [
            (2 + kills, 1),
            (1 + kills, 0),
        ]


async def test_job_that_may_run_once_fails_if_the_server_was_stopped(disk: Stores) -> None:
    store = await disk.open(max_losses=1)
    await store.enqueue(new())
    job = await take(store, "local")
    await disk.close()
    disk.ended.clear()
    reopened = await disk.open(max_losses=1)
    failed = await job_of(reopened, job.id)
    assert failed.status is JobStatus.FAILED
    assert (
        failed.error == "the job was started and lost once; the last time: the server was stopped"
    )
    assert disk.ended == [failed]


async def test_lease_of_a_worker_that_did_not_survive_expires(disk: Stores) -> None:
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store, "far", lease_s=10**6)
    await disk.close()
    reopened = await disk.open(lambda worker_id: True)
    await disk.pass_time(reopened, 31)
    assert (await job_of(reopened, job.id)).status is JobStatus.IN_QUEUE


async def test_limits_continue_while_the_server_is_down(disk: Stores) -> None:
    store = await disk.open()
    brief = await store.enqueue(new(ttl_ms=60_000))
    slow = await store.enqueue(new(execution_timeout_ms=60_000))
    ended = await store.enqueue(new())
    _, slow, ended = await store.receive("e", "w", lease_s=10**6, limit=3)
    await store.nack(brief.id, 1)
    await store.ack(ended.id, 1, output=b"1")
    await disk.close()
    disk.clock.tick(61)
    reopened = await disk.open(lambda worker_id: True)
    await reopened.sweep()
    assert await reopened.get(brief.id) is None
    assert (await job_of(reopened, slow.id)).status is JobStatus.TIMED_OUT
    await disk.pass_time(reopened, 30 * 60 - 60)
    assert await reopened.get(ended.id) is None


async def test_recovered_stream_continues_with_higher_numbers(disk: Stores) -> None:
    """Readers may have received chunks that were not on disk, so numbers must not repeat."""
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store, "far")
    await store.append_chunks(job.id, 1, [b"1", b"2"])
    await disk.close()
    reopened = await disk.open(lambda worker_id: True)
    assert await reopened.take_chunks(job.id, 0) == [Chunk(1, 1, b"1"), Chunk(1, 2, b"2")]
    await reopened.append_chunks(job.id, 1, [b"3"])
    assert await reopened.read_chunks(job.id, (1, 5), 0) == [Chunk(1, 3 + RESUME_NUMBER_GAP, b"3")]


async def test_chunks_of_earlier_attempts_are_not_recovered(disk: Stores) -> None:
    store = await disk.open()
    failed, lost = await store.enqueue(new(1)), await store.enqueue(new(2))
    for job in await store.receive("e", "w", lease_s=30, limit=2):
        await store.append_chunks(job.id, 1, [b"1"])
    await store.ack(failed.id, 1, error="no")
    await store.nack(lost.id, 1, "lost")
    # Waits for the disk, so all earlier changes are written.
    await store.cancel((await store.enqueue(new(3))).id)
    await store.retry(failed.id)
    await disk.close()
    reopened = await disk.open()
    for job in (failed, lost):
        assert await reopened.read_chunks(job.id, (0, 0), 0) == []
    for job in await reopened.receive("e", "w", lease_s=30, limit=2):
        await reopened.append_chunks(job.id, 2, [b"2"])
        assert await reopened.read_chunks(job.id, (0, 0), 0) == [Chunk(2, 1, b"2")]
    await disk.close()
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        assert database.execute("SELECT attempt, value FROM chunks").fetchall() == [(2, b"2")] * 2


async def test_removed_jobs_leave_no_rows(disk: Stores) -> None:
    store = await disk.open(retention_s=60)
    for number in range(4):
        await store.enqueue(new(number, sync=number % 2 == 0, ttl_ms=3_600_000))
    for job in await store.receive("e", "w", lease_s=30, limit=3):
        await store.append_chunks(job.id, 1, [b"1"])
        await store.ack(job.id, 1, output=b"1")
    await disk.pass_time(store, 61)
    await disk.pass_time(store, 3_600)
    await disk.close()
    journal = disk.journals[-1]
    assert not journal._row_numbers
    assert not journal._on_disk
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        for table in ("jobs", "inputs", "chunks"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)  # noqa: S608


async def test_input_is_written_once(disk: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await disk.open()
    client = disk.journals[-1]._client
    write_batch, sizes = client.write_batch, []

    async def recording(frame: bytes, number: int) -> Any:
        sizes.append(len(frame))
        return await write_batch(frame, number)

    monkeypatch.setattr(client, "write_batch", recording)
    queued_job = await store.enqueue(new("x" * 100_000))
    await store.ack((await take(store)).id, 1, output=b"1")
    assert sizes[0] > 100_000
    assert sum(sizes[1:]) < 5_000
    await disk.close()
    assert (await job_of(await disk.open(), queued_job.id)).input == b"x" * 100_000


async def test_job_published_late_keeps_its_place(disk: Stores) -> None:
    store = await disk.open()
    queued_jobs = []
    for sync in (True, False):
        queued_jobs.append(await store.enqueue(new(sync=sync)))
        disk.clock.tick(1)
    await store.publish(queued_jobs[0].id)
    await disk.close()
    reopened = await disk.open()
    assert [job.id for job in await reopened.list_recent_jobs("e", 2)] == [
        queued_jobs[1].id,
        queued_jobs[0].id,
    ]
    assert [(await take(reopened)).id for _ in queued_jobs] == [job.id for job in queued_jobs]


async def test_large_jobs_are_loaded_in_several_frames(disk: Stores) -> None:
    """Both processes hold a frame in memory, and its size is limited."""
    store = await disk.open()
    for number in range(3):
        await store.enqueue(new(f"{number}" * 5_000_000, webhook="http://x"))
        await store.ack((await take(store)).id, 1, output=b"1" * 5_000_000)
    await disk.close()
    client = StoreClient(disk.path, 5.0)
    await client.connect(check=False)
    await client.send(encode(("load",)))
    kinds = []
    while "loaded" not in kinds:
        kinds.append((await client.receive())[0])
    await client.close(SOON_S)
    # The last one is empty.
    assert kinds == ["rows"] * 4 + ["loaded"]


async def test_publish_writes_a_runsync_to_disk(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new(sync=True))
    await store.publish(queued_job.id)
    assert await rows(disk.path) == {queued_job.id: "IN_QUEUE"}
    job = await take(store)
    await store.ack(job.id, 1, output=b"1")
    assert await rows(disk.path) == {queued_job.id: "COMPLETED"}


async def test_publish_writes_progress_and_chunks_of_a_runsync(disk: Stores) -> None:
    store = await disk.open()
    published, unpublished = [await store.enqueue(new(number, sync=True)) for number in range(2)]
    for job in await store.receive("e", "w", lease_s=30, limit=2):
        await store.append_chunks(job.id, 1, [b"1", b"2"])
        await store.save_progress(job.id, 1, b'"half"')
    await store.publish(published.id)
    await store.append_chunks(published.id, 1, [b"3"])
    await disk.close()
    reopened = await disk.open(lambda worker_id: True)
    assert (await job_of(reopened, published.id)).progress == b'"half"'
    assert [each.value for each in await reopened.read_chunks(published.id, (0, 0), 0)] == [
        b"1",
        b"2",
        b"3",
    ]
    # No client has its id.
    assert await reopened.get(unpublished.id) is None


async def test_retry_writes_a_runsync_to_disk(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new("again", sync=True))
    job = await take(store)
    await store.append_chunks(job.id, 1, [b"1"])
    await store.ack(job.id, 1, error="no")
    assert await rows(disk.path) == {}
    await store.retry(queued_job.id)
    assert await rows(disk.path) == {queued_job.id: "IN_QUEUE"}
    await disk.close()
    reopened = await disk.open()
    assert await reopened.read_chunks(queued_job.id, (0, 0), 0) == []
    job = await take(reopened)
    assert (job.id, job.input, job.attempt, job.retries) == (queued_job.id, b"again", 2, 1)
    await reopened.ack(job.id, 2, output=b"1")
    assert await rows(disk.path) == {queued_job.id: "COMPLETED"}


async def test_visible_changes_are_on_disk(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new(execution_timeout_ms=5_000))
    assert await rows(disk.path) == {queued_job.id: "IN_QUEUE"}
    await take(store, lease_s=1000)
    await disk.pass_time(store, 6)
    assert await rows(disk.path) == {queued_job.id: "TIMED_OUT"}
    await store.retry(queued_job.id)
    assert await rows(disk.path) == {queued_job.id: "IN_QUEUE"}
    await store.cancel(queued_job.id)
    assert await rows(disk.path) == {queued_job.id: "CANCELLED"}


async def test_killed_store_process_loses_nothing_under_load(disk: Stores) -> None:
    """The same batch is sent to the next process: nothing is lost or duplicated."""
    store = await disk.open()
    (journal,) = disk.journals
    pids: list[int] = []
    has_ended_one = asyncio.Event()

    async def kill() -> None:
        while len(pids) < 5:
            pid, already = journal.pid, len(ended)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            pids.append(pid)
            # More than may have been answered before the kill, so the new process has written.
            while len(ended) < already + 3 * PRODUCERS:
                has_ended_one.clear()
                await has_ended_one.wait()

    killer = asyncio.create_task(kill())

    async def send(number: int) -> None:
        while not killer.done():
            job = await store.enqueue(new(number))
            job_ids.append(job.id)
            (mine,) = await store.receive("e", f"w{number}", lease_s=1000)
            await store.append_chunks(mine.id, mine.attempt, [b"1", b"2"])
            assert await store.ack(mine.id, mine.attempt, output=mine.id.encode())
            ended.append(mine.id)
            has_ended_one.set()

    job_ids: list[str] = []
    ended: list[str] = []
    async with asyncio.timeout(4 * SOON_S):
        await asyncio.gather(killer, *(send(number) for number in range(PRODUCERS)))
    assert len(pids) == 5
    assert sorted(job_ids) == sorted(ended)
    assert [job.id for job in disk.ended] == ended
    await disk.close()
    reopened = await disk.open()
    recovered = {job.id: job for job in await reopened.list_recent_jobs("e", 10**6)}
    assert sorted(recovered) == sorted(job_ids)
    for job_id, job in recovered.items():
        assert (job.status, job.output) == (JobStatus.COMPLETED, job_id.encode())
        assert [chunk.value for chunk in await reopened.read_chunks(job_id, (0, 0), 0)] == [
            b"1",
            b"2",
        ]


async def test_kill_9_of_the_server_loses_nothing_and_ends_its_store_process(
    disk: Stores,
) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        str(disk.path),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert server.stdout is not None
    async with asyncio.timeout(2 * SOON_S):
        store_pid = int(await server.stdout.readline())
        published = [(await server.stdout.readline()).decode().strip() for _ in range(200)]
        server.kill()
        published += [line for line in (await server.stdout.read()).decode().split("\n") if line]
        await server.wait()
    # The lock is released when the store process has ended.
    store = await disk.open()
    if published and not published[-1].endswith("-u1"):
        published.pop()
    recovered = {job.id for job in await store.list_recent_jobs("e", 10**6)}
    assert set(published) <= recovered
    assert not is_alive(store_pid)


async def test_cancelled_enqueue_leaves_no_job(disk: Stores) -> None:
    store = await disk.open()
    sending = asyncio.create_task(store.enqueue(new()))
    await run_ready_tasks(2)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    remaining = await store.enqueue(new())
    await disk.close()
    assert [job.id for job in await (await disk.open()).list_recent_jobs("e", 10)] == [remaining.id]


async def test_ack_takes_effect_when_its_caller_is_cancelled(
    disk: Stores,
) -> None:
    store = await disk.open()
    await store.enqueue(new())
    job = await take(store)
    waiting = asyncio.create_task(store.wait(job.id, 60))
    acking = asyncio.create_task(store.ack(job.id, 1, output=b"1"))
    await run_ready_tasks(1)
    acking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acking
    ended = await soon(waiting)
    assert ended is not None
    assert ended.status is JobStatus.COMPLETED


async def test_close_writes_pending_changes(disk: Stores) -> None:
    store = await disk.open()
    queued_job = await store.enqueue(new())
    await take(store)
    await disk.close()
    assert await rows(disk.path) == {queued_job.id: "IN_PROGRESS"}


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def rows(path: Path) -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT id, status FROM jobs").fetchall())

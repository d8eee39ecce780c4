"""The queue worker: leases, retries, and failures of the engine, the bucket and the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest
from moto import mock_aws

import jobs.memory.store
from batch.input.line import Line
from batch.line_executor import EngineLost, LineExecutor, LineOutcome
from batch.progress import BatchProgress
from batch.queue.result_bucket import ResultBucket
from batch.queue.result_store import BucketResultStore
from batch.queue.worker import QueueWorker, WorkerStopped
from batch.queue.worker_config import WorkerConfig
from handler.delivery.blobs.s3 import s3_client
from jobs import Job, JobStatus, MemoryJobStore, NewJob, StoreUnavailable
from tests.waiting import poll_until, wait_until

CONFIG = WorkerConfig(
    queue_url="q",
    worker_id="w",
    slots=2,
    concurrency=4,
    lease_s=30.0,
    poll_s=1.0,
    max_attempts=3,
    max_receives=4,
    has_dead_letter_queue=False,
    until_empty=True,
)
Respond = Callable[[Line], Awaitable[LineOutcome]]


class FakeExecutor:
    """Answers each line with the result of a function, and records every attempt."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.answered_ids: list[str] = []
        # For each attempt, whether it was exclusive.
        self.exclusive: list[bool] = []

    def check(self, line: Line) -> None:
        """Accept every line."""

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.answered_ids.append(line.custom_id)
        self.exclusive.append(exclusive)
        return await self.respond(line)


async def succeed(line: Line) -> LineOutcome:
    return LineOutcome(b'{"status": "COMPLETED"}', ok=True, tokens=2)


@pytest.fixture(autouse=True)
def frequent_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.02)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResultBucket]:
    with mock_aws():
        credentials = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = s3_client(region_name="us-east-1", **credentials)
        client.create_bucket(Bucket="bucket")
        yield ResultBucket.from_url("s3://bucket/here", client)


@pytest.fixture
async def store() -> AsyncIterator[MemoryJobStore]:
    store = MemoryJobStore()
    await store.start()
    yield store
    await store.close()


async def send(store: MemoryJobStore, *names: str) -> list[Job]:
    bodies = [json.dumps({"id": name, "batch": "b", "input": {}}).encode() for name in names]
    return [await store.enqueue(NewJob(endpoint="q", input=body)) for body in bodies]


def create_worker(
    store: MemoryJobStore,
    bucket: ResultBucket,
    fake_executor: FakeExecutor,
    config: WorkerConfig = CONFIG,
) -> tuple[QueueWorker, BatchProgress]:
    progress = BatchProgress(0)
    executor = cast("LineExecutor", fake_executor)
    return QueueWorker(
        store,
        BucketResultStore(bucket, "m"),
        executor,
        progress,
        "m",
        config,
        min_retry_delay_s=0.01,
    ), progress


async def status(store: MemoryJobStore, job: Job) -> JobStatus:
    job_store = await store.get(job.id)
    assert job_store is not None
    return job_store.status


async def test_worker_answers_all_messages(store: MemoryJobStore, bucket: ResultBucket) -> None:
    queued_jobs = await send(store, *(f"n{number}" for number in range(10)))
    worker, progress = create_worker(store, bucket, FakeExecutor(succeed))
    await worker.run()
    assert {await status(store, job) for job in queued_jobs} == {JobStatus.COMPLETED}
    assert (progress.done, progress.failed, progress.tokens) == (10, 0, 20)


async def test_worker_renews_the_lease_during_a_long_answer(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    async def slow(line: Line) -> LineOutcome:
        await asyncio.sleep(1.0)
        return await succeed(line)

    (job,) = await send(store, "a")
    fake_executor = FakeExecutor(slow)
    worker, _ = create_worker(store, bucket, fake_executor, replace(CONFIG, lease_s=0.3))
    await worker.run()
    assert fake_executor.answered_ids == ["a"]
    assert await status(store, job) is JobStatus.COMPLETED


async def test_worker_cancels_a_message_that_was_leased_to_another(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    stopped: list[str] = []

    async def endless(line: Line) -> LineOutcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(line.custom_id)
            raise
        return await succeed(line)

    (job,) = await send(store, "a")
    # Renewed every second; long enough not to expire on a busy machine.
    config = replace(CONFIG, lease_s=3.0, until_empty=False)
    fake_executor = FakeExecutor(endless)
    worker, progress = create_worker(store, bucket, fake_executor, config)
    run_task = asyncio.create_task(worker.run())
    await wait_until(lambda: fake_executor.answered_ids)
    worker.stop()
    assert await store.reclaim_jobs("w", "it was thought dead")
    async with asyncio.timeout(40):
        await run_task
    assert (stopped, progress.done) == (["a"], 0)
    assert await status(store, job) is JobStatus.IN_QUEUE


async def test_worker_retries_a_temporary_failure_until_max_receives(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    async def bad(line: Line) -> LineOutcome:
        return LineOutcome(b'{"status": "FAILED"}', ok=False, retryable=True)

    (job,) = await send(store, "a")
    fake_executor = FakeExecutor(bad)
    # One attempt less than after which the store itself fails a job.
    worker, progress = create_worker(store, bucket, fake_executor, replace(CONFIG, max_receives=3))
    await worker.run()
    assert fake_executor.answered_ids == ["a", "a"]
    assert (progress.done, progress.failed, progress.retries) == (1, 1, 1)
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.output == b'{"status": "FAILED"}'


@pytest.mark.long_except("3-exclusive1")
@pytest.mark.parametrize(
    ("max_receives", "exclusive"), [(4, [False, False, True]), (3, [False, True]), (2, [False])]
)
async def test_worker_makes_the_last_attempt_exclusive_unless_it_is_the_first(
    store: MemoryJobStore, bucket: ResultBucket, max_receives: int, exclusive: list[bool]
) -> None:
    async def crashed(line: Line) -> LineOutcome:
        return LineOutcome(b'{"status": "FAILED"}', ok=False, retryable=True, crashed=True)

    (job,) = await send(store, "a")
    fake_executor = FakeExecutor(crashed)
    worker, progress = create_worker(
        store, bucket, fake_executor, replace(CONFIG, max_receives=max_receives)
    )
    await worker.run()
    assert fake_executor.exclusive == exclusive
    assert (progress.done, progress.failed, progress.retries) == (1, 1, len(exclusive) - 1)
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.output == b'{"status": "FAILED"}'


async def test_worker_stops_and_returns_messages_when_the_engine_is_dead(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    async def lost(line: Line) -> LineOutcome:
        raise EngineLost("the engine has given up")

    queued_jobs = await send(store, "a", "b", "c")
    worker, _ = create_worker(store, bucket, FakeExecutor(lost))
    with pytest.raises(WorkerStopped, match="the engine has given up"):
        await worker.run()
    assert {await status(store, job) for job in queued_jobs} == {JobStatus.IN_QUEUE}
    assert [job.lost_attempts for job in await store.list_recent_jobs("q", 9)] == [0, 0, 0]


async def test_worker_stops_when_the_bucket_rejects_a_request(
    store: MemoryJobStore, bucket: ResultBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = {
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "region_name": "us-east-1",
    }

    async def kept_nowhere(line: Line) -> LineOutcome:
        await asyncio.to_thread(
            ResultBucket.from_url("s3://none", s3_client(**credentials)).put_if_absent, "a", b""
        )
        return await succeed(line)

    queued_jobs = await send(store, "a")
    worker, _ = create_worker(store, bucket, FakeExecutor(kept_nowhere))
    with pytest.raises(WorkerStopped, match="NoSuchBucket"):
        await worker.run()
    assert await status(store, queued_jobs[0]) is JobStatus.IN_QUEUE


async def test_worker_retries_an_ack_that_fails(
    store: MemoryJobStore, bucket: ResultBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2
    ack = store.ack

    async def failing(job_id: str, attempt: int, *, output: bytes | None = None) -> bool:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("s3://bucket: SlowDown")
        return await ack(job_id, attempt, output=output)

    monkeypatch.setattr(store, "ack", failing)
    (job,) = await send(store, "a")
    fake_executor = FakeExecutor(succeed)
    worker, progress = create_worker(store, bucket, fake_executor)
    await worker.run()
    assert (fake_executor.answered_ids, progress.done) == (["a"], 1)
    assert await status(store, job) is JobStatus.COMPLETED


async def test_worker_retries_a_receive_that_fails(
    store: MemoryJobStore, bucket: ResultBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3
    receive = store.receive

    async def failing(*credentials: object, **named: object) -> list[Job]:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("q: Could not connect")
        return await receive(*credentials, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "receive", failing)
    (job,) = await send(store, "a")
    worker, _ = create_worker(store, bucket, FakeExecutor(succeed))
    await worker.run()
    assert await status(store, job) is JobStatus.COMPLETED


async def test_worker_does_not_answer_a_message_with_a_stored_answer(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    (job,) = await send(store, "a")
    BucketResultStore(bucket, "m").keep(job.replace(output=b'{"status": "COMPLETED", "output": 1}'))
    fake_executor = FakeExecutor(succeed)
    worker, progress = create_worker(store, bucket, fake_executor)
    await worker.run()
    assert (fake_executor.answered_ids, progress.done) == ([], 0)
    assert await status(store, job) is JobStatus.COMPLETED


async def test_stop_returns_waiting_messages_before_others_finish(
    store: MemoryJobStore, bucket: ResultBucket
) -> None:
    finish = asyncio.Event()

    async def long(line: Line) -> LineOutcome:
        await finish.wait()
        return await succeed(line)

    queued_jobs = await send(store, "a", "b", "c", "d")
    fake_executor = FakeExecutor(long)
    worker, progress = create_worker(
        store, bucket, fake_executor, replace(CONFIG, slots=1, until_empty=False)
    )
    run_task = asyncio.create_task(worker.run())
    await wait_until(lambda: fake_executor.answered_ids)

    async def waiting() -> int:
        return (await store.stats("q")).counts[JobStatus.IN_QUEUE]

    async def all_taken() -> bool:
        return await waiting() == 0

    async def all_back() -> bool:
        return await waiting() == 3

    await poll_until(all_taken)
    worker.stop()
    assert await poll_until(all_back)
    assert not finish.is_set()
    finish.set()
    async with asyncio.timeout(40):
        await run_task
    # Any of the messages may have the slot, because their stored answers are read concurrently.
    (answered_id,) = fake_executor.answered_ids
    assert progress.done == 1
    assert await status(store, queued_jobs["abcd".index(answered_id)]) is JobStatus.COMPLETED

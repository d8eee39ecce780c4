"""A worker when its engine, its bucket or its lease fails it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest
from moto import mock_aws

import batch.queue.worker
import jobs.memory.store
from batch.input.line import Line
from batch.line_executor import EngineLost, LineExecutor, LineOutcome
from batch.progress import BatchProgress
from batch.queue.result_bucket import ResultBucket
from batch.queue.result_store import BucketResultStore
from batch.queue.worker import QueueWorker, WorkerStopped
from batch.queue.worker_config import WorkerConfig
from handler.blobs.s3 import s3_client
from jobs import Job, JobStatus, MemoryJobStore, NewJob, StoreUnavailable
from tests.waiting import poll_until, wait_until

TERMS = WorkerConfig(
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
Act = Callable[[Line], Awaitable[LineOutcome]]


class Answering:
    """Answers each line with the result of a function, and records every try."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.asked: list[str] = []
        # Of each try, whether the line was to run alone.
        self.exclusive: list[bool] = []

    def check(self, line: Line) -> None:
        """Accept every line."""

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        self.asked.append(line.custom_id)
        self.exclusive.append(exclusive)
        return await self.act(line)


async def good(line: Line) -> LineOutcome:
    return LineOutcome(b'{"status": "COMPLETED"}', ok=True, tokens=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", 0.02)
    monkeypatch.setattr(batch.queue.worker, "_MIN_RETRY_DELAY_S", 0.01)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResultBucket]:
    with mock_aws():
        given = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = s3_client(region_name="us-east-1", **given)
        client.create_bucket(Bucket="bucket")
        yield ResultBucket.from_url("s3://bucket/here", client)


@pytest.fixture
async def store() -> AsyncIterator[MemoryJobStore]:
    found = MemoryJobStore()
    await found.start()
    yield found
    await found.close()


async def send(store: MemoryJobStore, *names: str) -> list[Job]:
    bodies = [json.dumps({"id": name, "batch": "b", "input": {}}).encode() for name in names]
    return [await store.enqueue(NewJob(endpoint="q", input=body)) for body in bodies]


def worker_of(
    store: MemoryJobStore, place: ResultBucket, answering: Answering, terms: WorkerConfig = TERMS
) -> tuple[QueueWorker, BatchProgress]:
    tally = BatchProgress(0)
    answerer = cast("LineExecutor", answering)
    return QueueWorker(store, BucketResultStore(place, "m"), answerer, tally, "m", terms), tally


async def status(store: MemoryJobStore, job: Job) -> JobStatus:
    found = await store.get(job.id)
    assert found is not None
    return found.status


async def test_all_is_answered(store: MemoryJobStore, place: ResultBucket) -> None:
    sent = await send(store, *(f"n{number}" for number in range(10)))
    worker, tally = worker_of(store, place, Answering(good))
    await worker.run()
    assert {await status(store, job) for job in sent} == {JobStatus.COMPLETED}
    assert (tally.done, tally.failed, tally.tokens) == (10, 0, 20)


async def test_a_lease_is_renewed_for_as_long_as_an_answer_takes(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    async def slow(line: Line) -> LineOutcome:
        await asyncio.sleep(1.0)
        return await good(line)

    (job,) = await send(store, "a")
    answering = Answering(slow)
    worker, _ = worker_of(store, place, answering, replace(TERMS, lease_s=0.3))
    await worker.run()
    assert answering.asked == ["a"]
    assert await status(store, job) is JobStatus.COMPLETED


async def test_what_another_has_been_given_is_not_gone_on_with(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    stopped: list[str] = []

    async def endless(line: Line) -> LineOutcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(line.custom_id)
            raise
        return await good(line)

    (job,) = await send(store, "a")
    # Looked after every second: long enough not to be over on a machine that stands still.
    terms = replace(TERMS, lease_s=3.0, until_empty=False)
    answering = Answering(endless)
    worker, tally = worker_of(store, place, answering, terms)
    working = asyncio.create_task(worker.run())
    await wait_until(lambda: answering.asked)
    worker.stop()
    assert await store.reclaim_jobs("w", "it was thought dead")
    async with asyncio.timeout(10):
        await working
    assert (stopped, tally.done) == (["a"], 0)
    assert await status(store, job) is JobStatus.IN_QUEUE


async def test_a_failure_that_may_pass_is_tried_again_and_written_off_in_the_end(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    async def bad(line: Line) -> LineOutcome:
        return LineOutcome(b'{"status": "FAILED"}', ok=False, retryable=True)

    (job,) = await send(store, "a")
    answering = Answering(bad)
    # One try less than the store allows before it fails a job itself.
    worker, tally = worker_of(store, place, answering, replace(TERMS, max_receives=3))
    await worker.run()
    assert answering.asked == ["a", "a"]
    assert (tally.done, tally.failed, tally.retries) == (1, 1, 1)
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.output == b'{"status": "FAILED"}'


@pytest.mark.parametrize(
    ("max_receives", "exclusive"), [(4, [False, False, True]), (3, [False, True]), (2, [False])]
)
async def test_message_runs_alone_at_its_last_try_unless_that_is_its_first(
    store: MemoryJobStore, place: ResultBucket, max_receives: int, exclusive: list[bool]
) -> None:
    async def crashed(line: Line) -> LineOutcome:
        return LineOutcome(b'{"status": "FAILED"}', ok=False, retryable=True, crashed=True)

    (job,) = await send(store, "a")
    answering = Answering(crashed)
    worker, tally = worker_of(store, place, answering, replace(TERMS, max_receives=max_receives))
    await worker.run()
    assert answering.exclusive == exclusive
    assert (tally.done, tally.failed, tally.retries) == (1, 1, len(exclusive) - 1)
    ended = await store.get(job.id)
    assert ended is not None
    assert ended.output == b'{"status": "FAILED"}'


async def test_an_engine_that_has_given_up_ends_the_worker_and_costs_no_message(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    async def lost(line: Line) -> LineOutcome:
        raise EngineLost("the engine has given up")

    sent = await send(store, "a", "b", "c")
    worker, _ = worker_of(store, place, Answering(lost))
    with pytest.raises(WorkerStopped, match="the engine has given up"):
        await worker.run()
    assert {await status(store, job) for job in sent} == {JobStatus.IN_QUEUE}
    assert [job.lost_attempts for job in await store.list_recent_jobs("q", 9)] == [0, 0, 0]


async def test_a_bucket_that_refuses_ends_the_worker_before_it_answers(
    store: MemoryJobStore, place: ResultBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}

    async def kept_nowhere(line: Line) -> LineOutcome:
        await asyncio.to_thread(
            ResultBucket.from_url("s3://none", s3_client(**given)).put_if_absent, "a", b""
        )
        return await good(line)

    sent = await send(store, "a")
    worker, _ = worker_of(store, place, Answering(kept_nowhere))
    with pytest.raises(WorkerStopped, match="NoSuchBucket"):
        await worker.run()
    assert await status(store, sent[0]) is JobStatus.IN_QUEUE


async def test_an_answer_is_not_given_up_for_a_request_that_fails(
    store: MemoryJobStore, place: ResultBucket, monkeypatch: pytest.MonkeyPatch
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
    answering = Answering(good)
    worker, tally = worker_of(store, place, answering)
    await worker.run()
    assert (answering.asked, tally.done) == (["a"], 1)
    assert await status(store, job) is JobStatus.COMPLETED


async def test_a_network_that_is_away_is_waited_for(
    store: MemoryJobStore, place: ResultBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3
    receive = store.receive

    async def failing(*given: object, **named: object) -> list[Job]:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("q: Could not connect")
        return await receive(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "receive", failing)
    (job,) = await send(store, "a")
    worker, _ = worker_of(store, place, Answering(good))
    await worker.run()
    assert await status(store, job) is JobStatus.COMPLETED


async def test_what_has_an_answer_is_not_answered_again(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    (job,) = await send(store, "a")
    BucketResultStore(place, "m").keep(job.replace(output=b'{"status": "COMPLETED", "output": 1}'))
    answering = Answering(good)
    worker, tally = worker_of(store, place, answering)
    await worker.run()
    assert (answering.asked, tally.done) == ([], 0)
    assert await status(store, job) is JobStatus.COMPLETED


async def test_what_waits_for_a_slot_is_given_back_before_others_have_finished(
    store: MemoryJobStore, place: ResultBucket
) -> None:
    finish = asyncio.Event()

    async def long(line: Line) -> LineOutcome:
        await finish.wait()
        return await good(line)

    sent = await send(store, "a", "b", "c", "d")
    answering = Answering(long)
    worker, tally = worker_of(store, place, answering, replace(TERMS, slots=1, until_empty=False))
    working = asyncio.create_task(worker.run())
    await wait_until(lambda: answering.asked)

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
    async with asyncio.timeout(10):
        await working
    # Whichever of them had the slot: they are looked up side by side, and come in any order.
    (had_it,) = answering.asked
    assert tally.done == 1
    assert await status(store, sent["abcd".index(had_it)]) is JobStatus.COMPLETED

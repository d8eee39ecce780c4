"""The contract of `JobQueue` for all drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from jobs import Job, JobQueue, JobStatus, Limits, MemoryJobStore, NewJob, SqliteJournal
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue
from tests.integration.jobs.stores import Clock
from tests.ministack import MiniStack, make_queue, ministack
from tests.waiting import poll_until, run_ready_tasks

# The shortest lease that SQS supports.
SQS_LEASE_S = 1
STORE_LEASE_S = 10.0
LONG_S = 60
MAX_LOSSES = 3


@dataclass
class MemoryResultStore:
    """Stores the first result of each job, for queues that do not store results."""

    ended_jobs: dict[str, Job] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, ended: Job) -> None:
        with self.lock:
            self.ended_jobs.setdefault(ended.id, ended)


@dataclass
class Driver:
    """A queue, an endpoint in it, and the store of its results."""

    queue: JobQueue
    endpoint: str
    results: MemoryResultStore
    # Lets time pass by the clock of the queue.
    pass_time: Callable[[float], Awaitable[None]]
    lease_s: float

    async def pass_lease(self) -> None:
        """Let so much time pass that a lease has certainly expired."""
        await self.pass_time(self.lease_s + 0.1)

    async def send(self, body: bytes = b"1") -> Job:
        return await self.queue.enqueue(NewJob(endpoint=self.endpoint, input=body))

    async def take(self, worker: str = "w", lease_s: float = LONG_S, **other: Any) -> list[Job]:
        return await self.queue.receive(self.endpoint, worker, lease_s=lease_s, **other)

    async def take_one(self, worker: str = "w", lease_s: float = LONG_S) -> Job:
        (job,) = await self.take(worker, lease_s, wait_s=5)
        return job

    async def take_after_expiry(self, worker: str = "w", lease_s: float = LONG_S) -> Job:
        """Wait for the expiry of a lease and lease the job again.

        The lease expires at SQS a moment earlier than in this process. A receive in between would
        renew the old lease, so this waits first.
        """
        await self.pass_lease()

        async def poll() -> list[Job]:
            return await self.take(worker, lease_s)

        (job,) = await poll_until(poll)
        return job

    async def find_ended(self, job_id: str) -> Job:
        if isinstance(self.queue, MemoryJobStore):
            ended = await self.queue.get(job_id)
            assert ended is not None
            return ended
        return self.results.ended_jobs[job_id]


async def open_store(journal: SqliteJournal | None) -> AsyncIterator[Driver]:
    clock = Clock()
    store = MemoryJobStore(
        Limits(max_losses=MAX_LOSSES), journal, now=clock.now, monotonic=clock.monotonic
    )
    await store.start()

    async def pass_time(seconds: float) -> None:
        clock.tick(seconds)
        await store.sweep()

    yield Driver(store, "e", MemoryResultStore(), pass_time, STORE_LEASE_S)
    await store.close()


async def open_sqs(client: Any, name: str) -> AsyncIterator[Driver]:
    results = MemoryResultStore()
    queue = SqsQueue(client, results, retry_delay_s=0)
    yield Driver(queue, make_queue(client, name, MAX_LOSSES), results, asyncio.sleep, SQS_LEASE_S)
    queue.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with ministack(tmp_path_factory.mktemp("ministack")) as stack:
        yield stack


@pytest.fixture
async def memory() -> AsyncIterator[Driver]:
    async for driver in open_store(None):
        yield driver


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Driver]:
    async for driver in open_store(SqliteJournal(tmp_path / "jobs.sqlite3")):
        yield driver


@pytest.fixture
async def moto(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/queue"
    with mock_aws():
        client = sqs_client(url, aws_access_key_id="x", aws_secret_access_key="x")
        async for driver in open_sqs(client, "queue"):
            yield driver


@pytest.fixture
async def server_queue(server: MiniStack, request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    async for driver in open_sqs(server.client(), f"q{abs(hash(request.node.name))}"):
        yield driver


# moto imitates what the server of queues does.
@pytest.fixture(
    params=["memory", "sqlite", pytest.param("moto", marks=pytest.mark.long), "server_queue"]
)
def driver(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = request.getfixturevalue(request.param)
    return driver


BODIES = [b"1", b'"' + b"x" * 200_000 + b'"', '{"a": "é\U0001f600\ufffd"}'.encode()]


async def test_sent_job_is_received(driver: Driver) -> None:
    queued_jobs = [await driver.send(body) for body in BODIES]
    received_jobs = [await driver.take_one() for _ in queued_jobs]
    assert {job.id: job.input for job in received_jobs} == {
        job.id: job.input for job in queued_jobs
    }
    for job in received_jobs:
        assert (job.status, job.attempt, job.lost_attempts) == (JobStatus.IN_PROGRESS, 1, 0)
        assert (job.endpoint, job.worker_id) == (driver.endpoint, "w")
        assert abs(job.created_at - queued_jobs[0].created_at) < 60


async def test_characters_that_xml_does_not_allow_are_sent(driver: Driver) -> None:
    await driver.send('"\ufffe\uffff"'.encode())
    job = await driver.take_one()
    assert job.input in ('"\ufffe\uffff"'.encode(), b'"\\ufffe\\uffff"')


async def test_receive_from_an_empty_queue_returns_nothing(driver: Driver) -> None:
    assert await driver.take() == []
    assert await driver.take(wait_s=0.01) == []


async def test_waiting_receive_returns_a_new_job(driver: Driver) -> None:
    waiting = asyncio.create_task(driver.take(wait_s=15))
    await run_ready_tasks()
    queued_job = await driver.send()
    async with asyncio.timeout(40):
        assert [job.id for job in await waiting] == [queued_job.id]


async def test_receive_returns_at_most_its_limit(driver: Driver) -> None:
    job_ids = {(await driver.send(b"%d" % number)).id for number in range(5)}
    first = await driver.take(limit=3, wait_s=5)
    assert 1 <= len(first) <= 3
    later_ids = [(await driver.take_one()).id for _ in range(5 - len(first))]
    assert {job.id for job in first} | set(later_ids) == job_ids


async def test_leased_job_is_not_leased_to_another_worker(driver: Driver) -> None:
    await driver.send()
    await driver.take_one("a")
    assert await driver.take("b") == []


async def test_acked_job_is_not_delivered_again_and_its_output_is_stored(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one(lease_s=driver.lease_s)
    assert await driver.queue.ack(job.id, job.attempt, output=b'"done"')
    ended = await driver.find_ended(job.id)
    assert (ended.status, ended.output) == (JobStatus.COMPLETED, b'"done"')
    assert not await driver.queue.ack(job.id, job.attempt, output=b'"again"')
    assert (await driver.find_ended(job.id)).output == b'"done"'
    await driver.pass_lease()
    assert await driver.take() == []


async def test_ack_with_an_error_ends_the_job(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one()
    assert await driver.queue.ack(job.id, job.attempt, error="no")
    ended = await driver.find_ended(job.id)
    assert (ended.status, ended.error) == (JobStatus.FAILED, "no")


async def test_earlier_attempt_cannot_change_the_job(driver: Driver) -> None:
    """A worker that was believed dead is still alive."""
    queued_job = await driver.send()
    first = await driver.take_one("a", driver.lease_s)
    second = await driver.take_after_expiry("b")
    assert second.id == first.id == queued_job.id
    assert second.attempt > first.attempt
    assert not await driver.queue.extend(first.id, first.attempt, LONG_S)
    assert not await driver.queue.nack(first.id, first.attempt)
    assert not await driver.queue.ack(first.id, first.attempt, output=b'"late"')
    # The lease of the second attempt is unchanged.
    assert await driver.take("c") == []
    assert await driver.queue.ack(second.id, second.attempt, output=b'"second"')
    assert (await driver.find_ended(queued_job.id)).output == b'"second"'


async def test_expired_lease_is_invalid_before_the_job_is_leased_again(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one(lease_s=driver.lease_s)
    await driver.pass_lease()
    assert not await driver.queue.ack(job.id, job.attempt, output=b'"late"')
    assert (await driver.take_one()).attempt == job.attempt + 1


async def test_lease_can_be_extended_but_not_shortened(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one("a", driver.lease_s)
    assert await driver.queue.extend(job.id, job.attempt, LONG_S)
    assert await driver.queue.extend(job.id, job.attempt, driver.lease_s)
    await driver.pass_lease()
    assert await driver.take("b") == []
    assert await driver.queue.ack(job.id, job.attempt)


async def test_nacked_job_is_ready_at_once(driver: Driver) -> None:
    queued_job = await driver.send()
    job = await driver.take_one("a")
    assert await driver.queue.nack(job.id, job.attempt)
    assert not await driver.queue.nack(job.id, job.attempt)
    second = await driver.take_one("b")
    assert (second.id, second.attempt) == (queued_job.id, job.attempt + 1)


async def test_job_lost_too_often_becomes_a_dead_letter(driver: Driver) -> None:
    queued_job = await driver.send(b'{"a": 1}')
    for _ in range(MAX_LOSSES):
        job = await driver.take_one()
        assert await driver.queue.nack(job.id, job.attempt, "the worker has gone")
    assert await driver.take() == []

    async def is_dead() -> bool:
        counts = (await driver.queue.stats(driver.endpoint)).counts
        return counts[JobStatus.FAILED] == 1

    assert await poll_until(is_dead)
    if isinstance(driver.queue, MemoryJobStore):
        dead = await driver.queue.get(queued_job.id)
        assert dead is not None
        assert dead.status is JobStatus.FAILED
        assert dead.error is not None


async def test_receive_with_skip_lost_does_not_return_a_lost_job(driver: Driver) -> None:
    await driver.send()
    first = await driver.take_one("a", driver.lease_s)
    await driver.pass_lease()
    assert await driver.take("a", driver.lease_s, skip_lost=True) == []
    other = await driver.take_after_expiry("b")
    assert other.id == first.id


async def test_jobs_are_counted(driver: Driver) -> None:
    for number in range(3):
        await driver.send(b"%d" % number)
    await driver.take_one()

    async def counted() -> bool:
        counts = (await driver.queue.stats(driver.endpoint)).counts
        return (counts[JobStatus.IN_QUEUE], counts[JobStatus.IN_PROGRESS]) == (2, 1)

    assert await poll_until(counted)


async def test_concurrent_workers_end_each_job_once(driver: Driver) -> None:
    jobs_sent = 40
    queued_jobs = await asyncio.gather(
        *(driver.send(b"%d" % number) for number in range(jobs_sent))
    )
    ended_jobs, refused = set[str](), set[str]()

    async def work(name: str) -> None:
        while len(ended_jobs) < jobs_sent:
            for job in await driver.take(name, limit=4, wait_s=0.1):
                is_accepted = await driver.queue.ack(job.id, job.attempt, output=job.input)
                (ended_jobs if is_accepted else refused).add(job.id)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(name) for name in "abcd"))
    assert ended_jobs == {job.id for job in queued_jobs}
    # moto, like AWS, may deliver a message twice; the second ack is then refused.
    assert not refused or isinstance(driver.queue, SqsQueue)
    for job in queued_jobs:
        assert (await driver.find_ended(job.id)).output == job.input
    assert await driver.take() == []

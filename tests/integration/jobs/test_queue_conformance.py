"""What holds of every queue: one suite for all drivers, on the clock that each of them has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

import jobs.memory.store
from jobs import Job, JobQueue, JobStatus, Limits, MemoryJobStore, NewJob, SqliteJournal
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue
from tests.ministack import MiniStack, make_queue, ministack
from tests.waiting import poll_until

# The shortest that SQS has.
SQS_LEASE_S = 1
LONG_S = 60
MAX_LOSSES = 3
FAST = 0.02


@dataclass
class Kept:
    """Where the ends of jobs go that a queue does not keep itself: the first one of each."""

    ends: dict[str, Job] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, ended: Job) -> None:
        with self.lock:
            self.ends.setdefault(ended.id, ended)


@dataclass
class Driver:
    """A queue, the name of an endpoint in it, and where its results are."""

    queue: JobQueue
    endpoint: str
    kept: Kept
    lease_s: float = 0.2

    @property
    def past_s(self) -> float:
        """How long one waits for a lease to be over."""
        return self.lease_s + 5 * FAST

    async def send(self, body: bytes = b"1") -> Job:
        return await self.queue.enqueue(NewJob(endpoint=self.endpoint, input=body))

    async def take(self, worker: str = "w", lease_s: float = LONG_S, **other: Any) -> list[Job]:
        return await self.queue.receive(self.endpoint, worker, lease_s=lease_s, **other)

    async def take_one(self, worker: str = "w", lease_s: float = LONG_S) -> Job:
        (job,) = await self.take(worker, lease_s, wait_s=5)
        return job

    async def take_again(self, worker: str = "w", lease_s: float = LONG_S) -> Job:
        """Return the job whose lease is about to end.

        Its end is waited for first: SQS's comes a moment before this process's, and who asks in
        between makes the lease that is about to end a longer one.
        """
        await asyncio.sleep(self.past_s)

        async def look() -> list[Job]:
            return await self.take(worker, lease_s)

        (job,) = await poll_until(look)
        return job

    async def end_of(self, job_id: str) -> Job:
        if isinstance(self.queue, MemoryJobStore):
            ended = await self.queue.get(job_id)
            assert ended is not None
            return ended
        return self.kept.ends[job_id]


async def store_of(journal: SqliteJournal | None) -> AsyncIterator[Driver]:
    store = MemoryJobStore(Limits(max_losses=MAX_LOSSES), journal)
    await store.start()
    yield Driver(store, "e", Kept())
    await store.close()


async def sqs_of(client: Any, name: str) -> AsyncIterator[Driver]:
    kept = Kept()
    queue = SqsQueue(client, kept, retry_delay_s=0)
    yield Driver(queue, make_queue(client, name, MAX_LOSSES), kept, SQS_LEASE_S)
    queue.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.memory.store, "TICK_S", FAST)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with ministack(tmp_path_factory.mktemp("ministack")) as found:
        yield found


@pytest.fixture
async def memory() -> AsyncIterator[Driver]:
    async for driver in store_of(None):
        yield driver


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Driver]:
    async for driver in store_of(SqliteJournal(tmp_path / "jobs.sqlite3")):
        yield driver


@pytest.fixture
async def moto(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/queue"
    with mock_aws():
        client = sqs_client(url, aws_access_key_id="x", aws_secret_access_key="x")
        async for driver in sqs_of(client, "queue"):
            yield driver


@pytest.fixture
async def of_server(server: MiniStack, request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    async for driver in sqs_of(server.client(), f"q{abs(hash(request.node.name))}"):
        yield driver


@pytest.fixture(params=["memory", "sqlite", "moto", "of_server"])
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.getfixturevalue(request.param)
    return found


BODIES = [b"1", b'"' + b"x" * 200_000 + b'"', '{"a": "é\U0001f600\ufffd"}'.encode()]


async def test_what_is_sent_is_received(driver: Driver) -> None:
    sent = [await driver.send(body) for body in BODIES]
    taken = [await driver.take_one() for _ in sent]
    assert {job.id: job.input for job in taken} == {job.id: job.input for job in sent}
    for job in taken:
        assert (job.status, job.attempt, job.lost_attempts) == (JobStatus.IN_PROGRESS, 1, 0)
        assert (job.endpoint, job.worker_id) == (driver.endpoint, "w")
        assert abs(job.created_at - sent[0].created_at) < 60


async def test_what_json_may_have_and_xml_may_not(driver: Driver) -> None:
    await driver.send('"\ufffe\uffff"'.encode())
    job = await driver.take_one()
    assert job.input in ('"\ufffe\uffff"'.encode(), b'"\\ufffe\\uffff"')


async def test_nothing_is_there(driver: Driver) -> None:
    assert await driver.take() == []
    assert await driver.take(wait_s=0.01) == []


async def test_whoever_waits_is_given_what_comes(driver: Driver) -> None:
    waiting = asyncio.create_task(driver.take(wait_s=15))
    await asyncio.sleep(0.05)
    sent = await driver.send()
    async with asyncio.timeout(10):
        assert [job.id for job in await waiting] == [sent.id]


async def test_no_more_than_asked_for(driver: Driver) -> None:
    sent = {(await driver.send(b"%d" % number)).id for number in range(5)}
    first = await driver.take(limit=3, wait_s=5)
    assert 1 <= len(first) <= 3
    rest = [(await driver.take_one()).id for _ in range(5 - len(first))]
    assert {job.id for job in first} | set(rest) == sent


async def test_what_is_leased_is_nobody_else_s(driver: Driver) -> None:
    await driver.send()
    await driver.take_one("a")
    assert await driver.take("b") == []


async def test_what_is_ended_is_gone_and_its_output_kept(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one(lease_s=driver.lease_s)
    assert await driver.queue.ack(job.id, job.attempt, output=b'"done"')
    ended = await driver.end_of(job.id)
    assert (ended.status, ended.output) == (JobStatus.COMPLETED, b'"done"')
    assert not await driver.queue.ack(job.id, job.attempt, output=b'"again"')
    assert (await driver.end_of(job.id)).output == b'"done"'
    await asyncio.sleep(driver.past_s)
    assert await driver.take() == []


async def test_an_error_is_an_end_as_well(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one()
    assert await driver.queue.ack(job.id, job.attempt, error="no")
    ended = await driver.end_of(job.id)
    assert (ended.status, ended.error) == (JobStatus.FAILED, "no")


async def test_an_attempt_that_is_over_says_nothing_any_more(driver: Driver) -> None:
    """A worker that was thought dead, and is not."""
    sent = await driver.send()
    first = await driver.take_one("a", driver.lease_s)
    second = await driver.take_again("b")
    assert second.id == first.id == sent.id
    assert second.attempt > first.attempt
    assert not await driver.queue.extend(first.id, first.attempt, LONG_S)
    assert not await driver.queue.nack(first.id, first.attempt)
    assert not await driver.queue.ack(first.id, first.attempt, output=b'"late"')
    # The second one's lease is as it was.
    assert await driver.take("c") == []
    assert await driver.queue.ack(second.id, second.attempt, output=b'"second"')
    assert (await driver.end_of(sent.id)).output == b'"second"'


async def test_a_lease_that_is_over_is_so_before_another_has_it(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one(lease_s=driver.lease_s)
    await asyncio.sleep(driver.past_s)
    assert not await driver.queue.ack(job.id, job.attempt, output=b'"late"')
    assert (await driver.take_one()).attempt == job.attempt + 1


async def test_a_lease_can_be_made_longer_and_not_shorter(driver: Driver) -> None:
    await driver.send()
    job = await driver.take_one("a", driver.lease_s)
    assert await driver.queue.extend(job.id, job.attempt, LONG_S)
    assert await driver.queue.extend(job.id, job.attempt, driver.lease_s)
    await asyncio.sleep(driver.past_s)
    assert await driver.take("b") == []
    assert await driver.queue.ack(job.id, job.attempt)


async def test_what_is_given_back_is_there_at_once(driver: Driver) -> None:
    sent = await driver.send()
    job = await driver.take_one("a")
    assert await driver.queue.nack(job.id, job.attempt)
    assert not await driver.queue.nack(job.id, job.attempt)
    again = await driver.take_one("b")
    assert (again.id, again.attempt) == (sent.id, job.attempt + 1)


async def test_what_is_lost_too_often_is_dead(driver: Driver) -> None:
    sent = await driver.send(b'{"a": 1}')
    for _ in range(MAX_LOSSES):
        job = await driver.take_one()
        assert await driver.queue.nack(job.id, job.attempt, "the worker has gone")
    assert await driver.take() == []

    async def look() -> list[Job]:
        return [*await driver.queue.list_dead_letters(driver.endpoint)]

    (dead,) = await poll_until(look)
    assert (dead.status, dead.input) == (JobStatus.FAILED, b'{"a": 1}')
    assert dead.error is not None
    if isinstance(driver.queue, MemoryJobStore):
        assert dead.id == sent.id
    # Looking changes nothing.
    assert [each.id for each in await driver.queue.list_dead_letters(driver.endpoint)] == [dead.id]
    counts = (await driver.queue.stats(driver.endpoint)).counts
    assert counts[JobStatus.FAILED] == 1


async def test_a_worker_that_is_busy_is_not_given_what_it_has_lost(driver: Driver) -> None:
    await driver.send()
    first = await driver.take_one("a", driver.lease_s)
    await asyncio.sleep(driver.past_s)
    assert await driver.take("a", driver.lease_s, skip_lost=True) == []
    other = await driver.take_again("b")
    assert other.id == first.id


async def test_jobs_are_counted(driver: Driver) -> None:
    for number in range(3):
        await driver.send(b"%d" % number)
    await driver.take_one()

    async def counted() -> bool:
        counts = (await driver.queue.stats(driver.endpoint)).counts
        return (counts[JobStatus.IN_QUEUE], counts[JobStatus.IN_PROGRESS]) == (2, 1)

    assert await poll_until(counted)


async def test_many_workers_end_each_job_once(driver: Driver) -> None:
    jobs_sent = 40
    sent = await asyncio.gather(*(driver.send(b"%d" % number) for number in range(jobs_sent)))
    ends, refused = set[str](), set[str]()

    async def work(name: str) -> None:
        while len(ends) < jobs_sent:
            for job in await driver.take(name, limit=4, wait_s=0.1):
                taken = await driver.queue.ack(job.id, job.attempt, output=job.input)
                (ends if taken else refused).add(job.id)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(name) for name in "abcd"))
    assert ends == {job.id for job in sent}
    # moto may deliver one twice, as AWS may: its second end is refused then.
    assert not refused or isinstance(driver.queue, SqsQueue)
    for job in sent:
        assert (await driver.end_of(job.id)).output == job.input
    assert await driver.take() == []

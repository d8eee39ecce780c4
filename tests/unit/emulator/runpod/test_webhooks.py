"""Webhooks: told until somebody says 200, a few times, and remembered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from emulator.runpod.webhooks import Webhooks
from jobs import Job, MemoryJobStore, NewJob
from tests.ports import free_port
from tests.unit.emulator.events import DEADLINE_S
from tests.unit.emulator.receiver import receiving
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_tasks_left")


class Told:
    """A store whose ended jobs are told of."""

    def __init__(self, *, max_attempts: int, retry_delay_s: float, timeout_s: float) -> None:
        self.store = MemoryJobStore(on_ended=lambda job: self.webhooks.send(job))
        self.webhooks = Webhooks(
            self.store, max_attempts=max_attempts, retry_delay_s=retry_delay_s, timeout_s=timeout_s
        )

    async def end(self, url: str | None, error: str | None = None) -> Job:
        """Send a job and end it."""
        job = await self.store.enqueue(NewJob(endpoint="e", input=b'{"a":1}', webhook=url))
        return await self.work(job.id, error)

    async def work(self, job_id: str, error: str | None = None) -> Job:
        (job,) = await self.store.receive("e", "e/w", lease_s=3600)
        assert job.id == job_id
        await self.store.ack(job.id, job.attempt, output=b'"out"', error=error)
        return job

    async def sent(self, job: Job) -> bool:
        now = await self.store.get(job.id)
        assert now is not None
        return now.webhook_sent

    async def settled(self) -> None:
        """Wait until nobody is being told."""
        async with asyncio.timeout(DEADLINE_S):
            while self.webhooks._tasks:
                await asyncio.wait(set(self.webhooks._tasks))


@asynccontextmanager
async def telling(
    max_attempts: int = 3, retry_delay_s: float = 0.01, timeout_s: float = DEADLINE_S
) -> AsyncIterator[Told]:
    found = Told(max_attempts=max_attempts, retry_delay_s=retry_delay_s, timeout_s=timeout_s)
    try:
        yield found
    finally:
        await found.webhooks.close()


async def test_job_is_told_of_once() -> None:
    async with receiving() as receiver, telling() as at:
        job = await at.end(receiver.url)
        await at.settled()
        (post,) = receiver.posts
        assert post.keys() == {
            "id",
            "status",
            "input",
            "output",
            "webhook",
            "delayTime",
            "executionTime",
            "workerId",
        }
        assert (post["id"], post["status"], post["output"]) == (job.id, "COMPLETED", "out")
        assert (post["input"], post["webhook"]) == ({"a": 1}, receiver.url)
        (head,) = receiver.heads
        assert head.startswith("POST /told HTTP/1.1\r\n")
        assert "content-type: application/json" in head.lower()
        assert await at.sent(job)


async def test_nobody_who_asked_for_nothing_is_told() -> None:
    async with telling() as at:
        await at.end(None)
        assert at.webhooks._tasks == set()
        assert at.webhooks._client is None


@pytest.mark.parametrize("answer", [201, 204, 301, 400, 404, 500, 503])
async def test_all_but_200_is_tried_again(answer: int) -> None:
    async with receiving(answer) as receiver, telling() as at:
        job = await at.end(receiver.url)
        await at.settled()
        first, second = receiver.posts
        assert first == second
        assert await at.sent(job)


async def test_refused_connection_is_tried_again() -> None:
    port = free_port()
    async with telling(max_attempts=1_000_000) as at:
        job = await at.end(f"http://127.0.0.1:{port}/told")
        await wait_until(lambda: at.webhooks._client is not None and at.webhooks._client.done())
        async with receiving(port=port) as receiver:
            await at.settled()
            assert [post["id"] for post in receiver.posts] == [job.id]
            assert await at.sent(job)


async def test_given_up_after_so_many_tries(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(500, 404, 503, 502, 500) as receiver, telling(max_attempts=3) as at:
        with caplog.at_level(logging.WARNING):
            job = await at.end(receiver.url)
            await at.settled()
        assert len(receiver.posts) == 3
        # Nor after a restart.
        assert await at.sent(job)
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "emulator.runpod.webhooks"
    ]
    assert said == [
        f"the webhook of job {job.id} failed, it answered 500; 2 more tries",
        f"the webhook of job {job.id} failed, it answered 404; 1 more tries",
        f"the webhook of job {job.id} was given up: it answered 503",
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "it did not answer in 0.05 s"),
        ("HTTP/1.1 200 ", "it did not answer in 0.05 s"),
        ("nonsense\r\n\r\n", "RemoteProtocolError"),
    ],
)
async def test_no_answer_is_no_200(
    answer: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(answer) as receiver, telling(max_attempts=1, timeout_s=0.05) as at:
        await at.end(receiver.url)
        await at.settled()
    assert words in caplog.text


async def test_body_of_the_answer_is_not_waited_for() -> None:
    endless = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n" + "x" * 1000
    async with receiving(endless) as receiver, telling() as at:
        job = await at.end(receiver.url)
        await at.settled()
        assert len(receiver.posts) == 1
        assert await at.sent(job)


@pytest.mark.parametrize("url", ["http://☃.é../", "http://a..b/", "http://xn--/"])
async def test_url_that_cannot_be_called_is_given_up(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with telling(max_attempts=1) as at:
        job = await at.end(url)
        await at.settled()
        assert await at.sent(job)
    assert "was given up" in caplog.text


async def test_only_so_many_are_told_at_a_time() -> None:
    async with receiving(*[""] * 40) as receiver, telling(max_attempts=1) as at:
        for _ in range(40):
            await at.end(receiver.url)
        for told in (16, 32, 40):
            await receiver.got(told)
            for writer in receiver.writers:
                writer.close()
        await at.settled()
        assert (len(receiver.posts), receiver.most_open) == (40, 16)


async def test_close_leaves_the_rest_to_the_next_start() -> None:
    async with receiving("", 500) as receiver:
        async with telling(retry_delay_s=3600) as at:
            waiting, pausing = await at.end(receiver.url), await at.end(receiver.url)
            await receiver.got(2)
        assert not await at.sent(waiting)
        assert not await at.sent(pausing)
        await at.end(receiver.url)
        assert at.webhooks._tasks == set()
        assert len(receiver.posts) == 2


async def test_job_that_is_run_again_is_told_of_as_it_ends_then() -> None:
    async with receiving(500) as receiver, telling(retry_delay_s=0.1) as at:
        job = await at.end(receiver.url, error="it broke")
        await receiver.got(1)
        await at.store.retry(job.id)
        await at.settled()
        # The first end is none any more.
        assert [post["status"] for post in receiver.posts] == ["FAILED"]
        assert not await at.sent(job)
        await at.work(job.id)
        await at.settled()
        assert [post["status"] for post in receiver.posts] == ["FAILED", "COMPLETED"]
        assert await at.sent(job)


async def test_end_that_was_told_late_does_not_count_for_the_next() -> None:
    async with receiving("", "") as receiver, telling(max_attempts=1) as at:
        job = await at.end(receiver.url, error="it broke")
        await receiver.got(1)
        (first,) = at.webhooks._tasks
        await at.store.retry(job.id)
        await at.work(job.id, error="it broke again")
        await receiver.got(2)
        receiver.writers[0].close()
        await asyncio.wait({first})
        assert not await at.sent(job)
        receiver.writers[1].close()
        await at.settled()
        assert await at.sent(job)

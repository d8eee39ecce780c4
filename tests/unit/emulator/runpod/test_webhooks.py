"""Webhooks: retried until a 200, limited in number, and recorded when sent."""

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


class WebhookScene:
    """A job store that sends webhooks for its ended jobs."""

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

    async def wait_until_delivered(self) -> None:
        """Wait until no webhook is being sent."""
        async with asyncio.timeout(DEADLINE_S):
            while self.webhooks._tasks:
                await asyncio.wait(set(self.webhooks._tasks))


@asynccontextmanager
async def open_scene(
    max_attempts: int = 3, retry_delay_s: float = 0.01, timeout_s: float = DEADLINE_S
) -> AsyncIterator[WebhookScene]:
    scene = WebhookScene(
        max_attempts=max_attempts, retry_delay_s=retry_delay_s, timeout_s=timeout_s
    )
    try:
        yield scene
    finally:
        await scene.webhooks.close()


async def test_webhook_sends_one_post_with_the_ended_job() -> None:
    async with receiving() as receiver, open_scene() as at:
        job = await at.end(receiver.url)
        await at.wait_until_delivered()
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


async def test_job_without_a_webhook_sends_nothing() -> None:
    async with open_scene() as at:
        await at.end(None)
        assert at.webhooks._tasks == set()
        assert at.webhooks._client is None


@pytest.mark.parametrize("answer", [201, 204, 301, 400, 404, 500, 503])
async def test_any_status_except_200_is_retried(answer: int) -> None:
    async with receiving(answer) as receiver, open_scene() as at:
        job = await at.end(receiver.url)
        await at.wait_until_delivered()
        first, second = receiver.posts
        assert first == second
        assert await at.sent(job)


async def test_refused_connection_is_retried() -> None:
    port = free_port()
    async with open_scene(max_attempts=1_000_000) as at:
        job = await at.end(f"http://127.0.0.1:{port}/told")
        await wait_until(lambda: at.webhooks._client is not None and at.webhooks._client.done())
        async with receiving(port=port) as receiver:
            await at.wait_until_delivered()
            assert [post["id"] for post in receiver.posts] == [job.id]
            assert await at.sent(job)


async def test_webhook_is_dropped_after_max_attempts(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(500, 404, 503, 502, 500) as receiver, open_scene(max_attempts=3) as at:
        with caplog.at_level(logging.WARNING):
            job = await at.end(receiver.url)
            await at.wait_until_delivered()
        assert len(receiver.posts) == 3
        # A restart does not send it either.
        assert await at.sent(job)
    messages = [
        record.getMessage()
        for record in caplog.records
        if record.name == "emulator.runpod.webhooks"
    ]
    assert messages == [
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
async def test_missing_response_counts_as_a_failure(
    answer: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(answer) as receiver, open_scene(max_attempts=1, timeout_s=0.05) as at:
        await at.end(receiver.url)
        await at.wait_until_delivered()
    assert words in caplog.text


async def test_response_body_is_not_awaited() -> None:
    endless = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n" + "x" * 1000
    async with receiving(endless) as receiver, open_scene() as at:
        job = await at.end(receiver.url)
        await at.wait_until_delivered()
        assert len(receiver.posts) == 1
        assert await at.sent(job)


@pytest.mark.parametrize("url", ["http://☃.é../", "http://a..b/", "http://xn--/"])
async def test_webhook_with_an_invalid_url_is_dropped(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_scene(max_attempts=1) as at:
        job = await at.end(url)
        await at.wait_until_delivered()
        assert await at.sent(job)
    assert "was given up" in caplog.text


async def test_concurrent_posts_are_limited() -> None:
    async with receiving(*[""] * 40) as receiver, open_scene(max_attempts=1) as at:
        for _ in range(40):
            await at.end(receiver.url)
        for count in (16, 32, 40):
            await receiver.got(count)
            for writer in receiver.writers:
                writer.close()
        await at.wait_until_delivered()
        assert (len(receiver.posts), receiver.max_open) == (40, 16)


async def test_close_leaves_undelivered_webhooks_to_the_next_start() -> None:
    async with receiving("", 500) as receiver:
        async with open_scene(retry_delay_s=3600) as at:
            waiting, pausing = await at.end(receiver.url), await at.end(receiver.url)
            await receiver.got(2)
        assert not await at.sent(waiting)
        assert not await at.sent(pausing)
        await at.end(receiver.url)
        assert at.webhooks._tasks == set()
        assert len(receiver.posts) == 2


async def test_retried_job_sends_a_second_webhook_when_it_ends() -> None:
    async with receiving(500) as receiver, open_scene(retry_delay_s=0.1) as at:
        job = await at.end(receiver.url, error="it broke")
        await receiver.got(1)
        await at.store.retry(job.id)
        await at.wait_until_delivered()
        # The retry replaces the first result, so its webhook does not count as sent.
        assert [post["status"] for post in receiver.posts] == ["FAILED"]
        assert not await at.sent(job)
        await at.work(job.id)
        await at.wait_until_delivered()
        assert [post["status"] for post in receiver.posts] == ["FAILED", "COMPLETED"]
        assert await at.sent(job)


async def test_late_delivery_does_not_count_for_the_next_end() -> None:
    async with receiving("", "") as receiver, open_scene(max_attempts=1) as at:
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
        await at.wait_until_delivered()
        assert await at.sent(job)

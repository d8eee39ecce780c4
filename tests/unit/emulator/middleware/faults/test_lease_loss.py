"""Jobs that are taken from their workers as soon as these have them."""

from __future__ import annotations

import orjson
import pytest

from emulator.middleware.faults.lease_loss import LeaseLossMiddleware
from jobs import MemoryJobStore, NewJob
from tests.unit.emulator.asgi import InnerApp, call


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


@pytest.mark.parametrize("batch", [False, True])
async def test_lease_is_lost_as_soon_as_the_worker_has_the_job(
    inner: InnerApp, batch: bool
) -> None:
    store = MemoryJobStore()
    job = await store.enqueue(NewJob(endpoint="a", input=b"{}"))
    (leased,) = await store.receive("a", "a/w", lease_s=60)
    answer = {"id": job.id, "input": {}}
    inner.body = orjson.dumps([answer] if batch else answer)
    path = "/v2/a/job-take-batch/w" if batch else "/v2/a/job-take/w"
    response = await call(LeaseLossMiddleware(inner, store), path)
    assert (response.status, response.body) == (200, inner.body)
    assert store.has_ready_job("a")
    assert not await store.ack(job.id, leased.attempt, output=b"1")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"error": {}}', b'{"id": 1}'])
async def test_response_without_a_job_loses_no_lease(inner: InnerApp, body: bytes) -> None:
    inner.body = body
    app = LeaseLossMiddleware(inner, MemoryJobStore())
    assert (await call(app, "/v2/a/job-take/w")).body == body

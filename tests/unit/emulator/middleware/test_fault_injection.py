"""Failures on purpose: how often, for whom, and the same each time with a seed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import orjson
import pytest

from emulator.http.disconnect import ABORT_EXTENSION
from emulator.middleware.fault_injection import FaultInjectionMiddleware
from emulator.settings.limits import FaultRates
from jobs import JobStore, MemoryJobStore, NewJob
from tests.unit.emulator.asgi import InnerApp, call

NO_STORE = cast("JobStore", None)


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


async def statuses(rates: FaultRates, count: int = 200, path: str = "/run") -> list[int]:
    app = FaultInjectionMiddleware(InnerApp(), rates, NO_STORE)
    return [(await call(app, path, "POST")).status for _ in range(count)]


@pytest.mark.parametrize(("name", "status"), [("status_429", 429), ("status_500", 500)])
async def test_fraction_of_client_requests_fails(name: str, status: int) -> None:
    rates = FaultRates(**cast("dict[str, Any]", {name: 0.3, "seed": 1}))
    for path in ("/run", "/v1/completions", "/v2/a/status/1"):
        found = await statuses(rates, path=path)
        assert set(found) == {200, status}
        assert 30 < found.count(status) < 90


async def test_failed_request_has_the_reason_and_is_not_processed(inner: InnerApp) -> None:
    response = await call(
        FaultInjectionMiddleware(inner, FaultRates(status_429=1), NO_STORE), "/run", "POST"
    )
    assert "FAULT_429" in response.reason
    assert int(response.headers["retry-after"]) >= 1
    assert inner.calls == []


async def test_seed_makes_each_kind_reproducible_independently() -> None:
    first = await statuses(FaultRates(status_429=0.5, seed=7))
    assert first == await statuses(FaultRates(status_429=0.5, seed=7))
    assert first != await statuses(FaultRates(status_429=0.5, seed=8))
    both = await statuses(FaultRates(status_429=0.5, status_500=0.5, seed=7))
    assert [each == 429 for each in both] == [each == 429 for each in first]


async def test_faults_are_random_without_a_seed() -> None:
    assert await statuses(FaultRates(status_429=0.5)) != await statuses(FaultRates(status_429=0.5))


@pytest.mark.parametrize(
    "path", ["/health", "/docs", "/faults", "/v2/a/job-take/w", "/v2/a/ping/w"]
)
async def test_other_requests_do_not_fail(inner: InnerApp, path: str) -> None:
    rates = FaultRates(status_429=1, status_500=1, drop_post=1)
    assert (await call(FaultInjectionMiddleware(inner, rates, NO_STORE), path)).status == 200


async def test_client_requests_are_delayed(
    inner: InnerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_s: list[float] = []

    async def record(delay_s: float) -> None:
        delays_s.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", record)
    app = FaultInjectionMiddleware(inner, FaultRates(delay_ms=400), NO_STORE)
    await call(app, "/v2/a/job-done/w/j", "POST")
    assert delays_s == []
    await call(app, "/run", "POST")
    assert delays_s == [0.4]


@pytest.mark.parametrize("path", ["/v2/a/job-done/w/j", "/v2/a/job-stream/w/j"])
async def test_post_is_dropped_unprocessed(inner: InnerApp, path: str) -> None:
    dropped: list[bool] = []
    app = FaultInjectionMiddleware(inner, FaultRates(drop_post=1), NO_STORE)
    response = await call(
        app,
        path,
        "POST",
        scope={"extensions": {ABORT_EXTENSION: {"abort": lambda: dropped.append(True)}}},
    )
    assert (response.status, dropped, inner.calls) == (0, [True], [])


async def test_dropped_post_is_500_without_server_support(inner: InnerApp) -> None:
    response = await call(
        FaultInjectionMiddleware(inner, FaultRates(drop_post=1), NO_STORE), "/v2/a/job-done/w/j"
    )
    assert response.status == 500


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
    response = await call(FaultInjectionMiddleware(inner, FaultRates(lose_lease=1), store), path)
    assert (response.status, response.body) == (200, inner.body)
    assert store.has_ready_job("a")
    assert not await store.ack(job.id, leased.attempt, output=b"1")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"error": {}}', b'{"id": 1}'])
async def test_response_without_a_job_loses_no_lease(inner: InnerApp, body: bytes) -> None:
    inner.body = body
    app = FaultInjectionMiddleware(inner, FaultRates(lose_lease=1), MemoryJobStore())
    assert (await call(app, "/v2/a/job-take/w")).body == body


def test_start_logs_a_warning(inner: InnerApp, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        FaultInjectionMiddleware(inner, FaultRates(status_429=0.1), NO_STORE)
    assert "fault injection is on" in caplog.text
    assert "status_429=0.1" in caplog.text

"""RunPod's limits on requests."""

from __future__ import annotations

import asyncio

import pytest

from emulator.middleware.faults.rate_limit import RATES, RateLimitMiddleware
from tests.unit.emulator.asgi import InnerApp, call


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


async def statuses(app: RateLimitMiddleware, path: str, count: int) -> list[int]:
    return [(await call(app, path, "POST")).status for _ in range(count)]


async def test_purge_is_limited_to_two_requests_in_ten_seconds(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "default")
    assert await statuses(app, "/v2/a/purge-queue", 3) == [200, 200, 429]
    response = await call(app, "/v2/a/purge-queue", "POST")
    assert 1 <= int(response.headers["retry-after"]) <= 10
    assert "a" in response.reason.split()


async def test_limits_are_per_endpoint_and_operation(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "default")
    assert await statuses(app, "/v2/a/purge-queue", 3) == [200, 200, 429]
    assert await statuses(app, "/v2/b/purge-queue", 3) == [200, 200, 429]
    assert await statuses(app, "/v2/a/cancel/1", 3) == [200] * 3


async def test_path_without_endpoint_counts_for_the_default_endpoint(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "mine")
    assert await statuses(app, "/purge-queue", 1) == [200]
    assert await statuses(app, "/v2/mine/purge-queue", 2) == [200, 429]


async def test_status_sync_counts_as_status_and_ids_count_together(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "default", {"status": (3, None)})
    assert await statuses(app, "/status/1", 1) == [200]
    assert await statuses(app, "/status-sync/2", 1) == [200]
    assert await statuses(app, "/v2/default/status/3", 2) == [200, 429]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_openai_routes_share_a_limit(inner: InnerApp, path: str) -> None:
    app = RateLimitMiddleware(inner, "default", {"openai": (2, None)})
    assert await statuses(app, "/v1/completions", 1) == [200]
    assert await statuses(app, path, 2) == [200, 429]


@pytest.mark.parametrize(
    "path", ["/health", "/v2/a/health", "/v2/a/job-take/w", "/v2/a/job-done/w/j", "/retry/1"]
)
async def test_path_that_runpod_does_not_limit_is_not_limited(inner: InnerApp, path: str) -> None:
    app = RateLimitMiddleware(inner, "default", dict.fromkeys(RATES, (1, 1)))
    assert await statuses(app, path, 5) == [200] * 5


async def test_concurrency_is_limited(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "default", {"runsync": (100, 2)})
    inner.gate.clear()
    held = [asyncio.create_task(call(app, "/runsync", "POST")) for _ in range(2)]
    await inner.wait_for_calls(2)
    assert (await call(app, "/runsync", "POST")).status == 429
    inner.gate.set()
    assert [(await each).status for each in held] == [200, 200]
    assert (await call(app, "/runsync", "POST")).status == 200
    assert not app._running


async def test_failed_request_frees_its_place(inner: InnerApp) -> None:
    app = RateLimitMiddleware(inner, "default", {"run": (100, 1)})
    inner.raises = ValueError("no")
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await call(app, "/run", "POST")


def test_limits_equal_the_limits_of_runpod() -> None:
    assert RATES["run"] == (1000, 200)
    assert RATES["runsync"] == RATES["status"] == RATES["stream"] == RATES["openai"] == (2000, 400)
    assert (RATES["cancel"], RATES["purge-queue"], RATES["requests"]) == (
        (100, 20),
        (2, None),
        (10, 2),
    )

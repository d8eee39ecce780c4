"""What a call's path tells of it before it is routed."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.types import ASGIApp

from emulator.http.error_format import ErrorFormat, find_error_format
from emulator.http.request_target import RouteGroup, classify
from emulator.http.shutdown_state import ShutdownState
from emulator.middleware.auth import ApiKeyMiddleware
from emulator.middleware.draining import DrainGate
from emulator.middleware.fault_injection import FaultInjectionMiddleware
from emulator.middleware.request_id import RequestIdMiddleware
from emulator.settings.limits import FaultRates
from jobs import JobStore
from tests.unit.emulator.asgi import InnerApp, call


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/chat/completions", True),
        ("/completions", True),
        ("/embeddings", True),
        ("/rerank", True),
        ("/score", True),
        ("/models", True),
        ("/models/a/b", True),
        ("/system/status", True),
        ("/v1/chat/completions", False),
        ("/v3/completions", False),
        ("/v2/default/openai/v1/chat/completions", False),
        ("/v2/models/run", False),
        ("/tokenize", False),
        ("/run", False),
        ("/", False),
    ],
)
def test_oracle_routes_are_those_without_a_prefix(path: str, named: bool) -> None:
    assert (find_error_format({"path": path}) is ErrorFormat.NAMED) is named


def test_worker_list_belongs_to_the_clients_of_its_endpoint() -> None:
    for path in ("/v2/serverless/ping/workers", "/v2/serverless/ping/workers/w/logs"):
        target = classify({"path": path})
        assert (target.group, target.operation) == (RouteGroup.CLIENT, "workers")
        assert target.endpoint == "ping"
    assert classify({"path": "/v2/serverless/ping/w"}).group is RouteGroup.WORKER


def test_oracle_routes_belong_to_the_openai_group() -> None:
    for path in (
        "/chat/completions",
        "/completions",
        "/embeddings",
        "/rerank",
        "/score",
        "/models",
        "/system/status",
    ):
        assert classify({"path": path}).group is RouteGroup.OPENAI


def gate(inner: InnerApp) -> ASGIApp:
    shutdown = ShutdownState()
    shutdown.start_draining()
    return DrainGate(inner, shutdown)


def broken(inner: InnerApp) -> ASGIApp:
    inner.raises = RuntimeError("a bug")
    return RequestIdMiddleware(inner)


def faults(**rates: Any) -> Any:
    return lambda inner: FaultInjectionMiddleware(
        inner, FaultRates(**rates), cast("JobStore", None)
    )


@pytest.mark.parametrize(
    ("refusing", "status", "name", "openai_code"),
    [
        (lambda inner: ApiKeyMiddleware(inner, ("one",)), 401, "unauthorized", "invalid_api_key"),
        (gate, 503, "service_unavailable", 503),
        (broken, 500, "internal", 500),
        (faults(status_429=1.0), 429, "rate_limit_exceeded", "rate_limit_exceeded"),
        (faults(status_500=1.0), 500, "internal", 500),
    ],
)
async def test_oracle_routes_have_named_errors(
    refusing: Any, status: int, name: str, openai_code: str | int
) -> None:
    # R40, R53, R64
    for path, code in (("/chat/completions", name), ("/v1/chat/completions", openai_code)):
        response = await call(refusing(InnerApp()), path, "POST")
        assert (response.status, response.error["code"]) == (status, code)
        if response.status == 429 and path == "/chat/completions":
            # As long as S1's clients wait.
            assert response.error["details"] == {"retry_after": 1}

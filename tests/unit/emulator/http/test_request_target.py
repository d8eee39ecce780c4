"""What a call's path tells of it before it is routed."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.types import ASGIApp

from emulator.config import FaultRates
from emulator.http.request_target import RouteGroup, classify, uses_named_errors
from emulator.http.shutdown_state import ShutdownState
from emulator.middleware.auth import ApiKeyMiddleware
from emulator.middleware.draining import DrainGate
from emulator.middleware.fault_injection import FaultInjectionMiddleware
from emulator.middleware.request_id import RequestIdMiddleware
from jobs import JobStore
from tests.unit.emulator.asgi import Inner, call


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/chat/completions", True),
        ("/completions", True),
        ("/embeddings", True),
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
def test_oracle_is_the_family_without_a_prefix(path: str, named: bool) -> None:
    assert uses_named_errors({"path": path}) is named


def test_oracles_routes_are_openais_plane() -> None:
    for path in ("/chat/completions", "/completions", "/embeddings", "/models", "/system/status"):
        assert classify({"path": path}).group is RouteGroup.OPENAI


def gate(inner: Inner) -> ASGIApp:
    shutdown = ShutdownState()
    shutdown.start_draining()
    return DrainGate(inner, shutdown)


def broken(inner: Inner) -> ASGIApp:
    inner.raises = RuntimeError("a bug")
    return RequestIdMiddleware(inner)


def faults(**rates: Any) -> Any:
    return lambda inner: FaultInjectionMiddleware(
        inner, FaultRates(**rates), cast("JobStore", None)
    )


@pytest.mark.parametrize(
    ("refusing", "status", "name"),
    [
        (lambda inner: ApiKeyMiddleware(inner, ("one",)), 401, "unauthorized"),
        (gate, 503, "service_unavailable"),
        (broken, 500, "internal"),
        (faults(status_429=1.0), 429, "rate_limit_exceeded"),
        (faults(status_500=1.0), 500, "internal"),
    ],
)
async def test_oracle_is_refused_in_its_own_words(refusing: Any, status: int, name: str) -> None:
    # R40, R53
    for path, code in (("/chat/completions", name), ("/v1/chat/completions", status)):
        told = await call(refusing(Inner()), path, "POST")
        assert (told.status, told.error["code"]) == (status, code)
        if told.status == 429 and code == name:
            # As long as S1's clients wait.
            assert told.error["details"] == {"retry_after": 1}

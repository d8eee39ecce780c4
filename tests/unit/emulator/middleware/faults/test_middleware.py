"""Which requests have faults, and where they are taken from."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from emulator.middleware.faults.middleware import RequestFaultMiddleware
from emulator.middleware.faults.rules import FaultRules
from jobs import MemoryJobStore, NewJob
from tests.error_bodies import read_param
from tests.unit.emulator.asgi import InnerApp, call

STATUS = {"x-fault": "status=418"}


@pytest.fixture
def rules() -> FaultRules:
    return FaultRules("default")


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


@pytest.fixture
def app(inner: InnerApp, rules: FaultRules) -> RequestFaultMiddleware:
    return RequestFaultMiddleware(inner, rules, MemoryJobStore())


@pytest.mark.parametrize(
    ("path", "has_fault"),
    [
        ("/run", True),
        ("/v2/any/status/1", True),
        ("/v1/chat/completions", True),
        ("/completions", True),
        ("/v2/any/openai/v1/models", True),
        ("/console/jobs", True),
        ("/faults", False),
        ("/faults/rule-1", False),
        ("/health", False),
        ("/metrics", False),
        ("/docs", False),
        ("/", False),
        ("/v2/any/ping/w", False),
        ("/v2/any/job-take/w", False),
        ("/v2/any/job-done/w/j", False),
        ("/v2/any/job-stream/w/j", False),
        ("/v2/any/job-stop/w", False),
    ],
)
async def test_only_requests_of_clients_have_faults(
    app: RequestFaultMiddleware, rules: FaultRules, path: str, has_fault: bool
) -> None:
    assert (await call(app, path, headers=STATUS)).status == (418 if has_fault else 200)
    rules.add({"fault": "status=503"})
    # A rule without an operation does not concern the console.
    has_fault &= path != "/console/jobs"
    assert (await call(app, path)).status == (503 if has_fault else 200)


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("job-take", "/v2/any/job-take/w"),
        ("job-take-batch", "/v2/any/job-take-batch/w"),
        ("job-stream", "/v2/any/job-stream/w/j"),
        ("job-done", "/v2/any/job-done/w/j"),
    ],
)
async def test_rule_that_names_an_operation_of_workers_concerns_them(
    app: RequestFaultMiddleware, rules: FaultRules, operation: str, path: str
) -> None:
    rules.add({"fault": "status=500", "operation": operation})
    assert [(await call(app, each)).status for each in (path, "/run")] == [500, 200]
    assert (await call(app, path, headers=STATUS)).status == 500


async def test_rule_with_rate_limits_applies_the_limits_of_runpod(
    app: RequestFaultMiddleware, rules: FaultRules
) -> None:
    rules.add({"fault": "rate-limits"})
    statuses = [(await call(app, "/v2/a/purge-queue", "POST")).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    rules.clear()
    assert (await call(app, "/v2/a/purge-queue", "POST")).status == 200


async def test_rule_with_lose_lease_takes_the_job_from_its_worker(
    inner: InnerApp, rules: FaultRules
) -> None:
    store = MemoryJobStore()
    app = RequestFaultMiddleware(inner, rules, store)
    rules.add({"fault": "lose-lease", "operation": "job-take", "times": 1})
    job = await store.enqueue(NewJob(endpoint="a", input=b"{}"))
    inner.body = json.dumps({"id": job.id}).encode()
    for is_lost in (True, False):
        await store.receive("a", "a/w", lease_s=60)
        assert (await call(app, "/v2/a/job-take/w")).body == inner.body
        assert store.has_ready_job("a") is is_lost


@pytest.mark.parametrize("fault", ["rate-limits", "lose-lease"])
async def test_request_cannot_ask_for_a_fault_of_rules(
    app: RequestFaultMiddleware, fault: str
) -> None:
    response = await call(app, "/run", headers={"x-fault": fault})
    assert response.status == 400
    assert f"x-fault: {fault} needs a rule, which POST /faults adds" in response.reason


async def test_several_headers_and_parameters_are_joined(app: RequestFaultMiddleware) -> None:
    raw = [(b"x-fault", b"status=429"), (b"x-fault", b"delay=0")]
    scope = {"headers": raw, "query_string": b"a=b&x-fault=retry-after%3D9"}
    response = await call(app, "/run", scope=scope)
    assert (response.status, response.headers["retry-after"]) == (429, "9")


@pytest.mark.parametrize("query", [b"x-fault=", b"x-fault=boom", b"x-fault=%00%ff", b"x-fault"])
async def test_invalid_parameter_is_rejected(
    app: RequestFaultMiddleware, inner: InnerApp, query: bytes
) -> None:
    response = await call(app, "/run", scope={"query_string": query})
    assert response.status == 400
    assert read_param(json.loads(response.body)) == "x-fault"
    assert inner.calls == []


async def test_invalid_header_has_the_error_format_of_its_path(
    app: RequestFaultMiddleware,
) -> None:
    headers = {"x-fault": "boom"}
    assert (await call(app, "/completions", headers=headers)).error["code"] == "invalid_request"
    assert (await call(app, "/v1/completions", headers=headers)).error["code"] == 400


async def test_request_with_a_header_uses_up_no_rule(
    app: RequestFaultMiddleware, rules: FaultRules
) -> None:
    rule = rules.add({"fault": "status=503", "times": 1})
    assert (await call(app, "/run", headers=STATUS)).status == 418
    assert rule.remaining == 1
    assert [(await call(app, "/run")).status for _ in range(2)] == [503, 200]


async def test_other_protocols_are_passed_on(rules: FaultRules) -> None:
    received: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        received.append(scope["type"])

    await RequestFaultMiddleware(inner, rules, MemoryJobStore())({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert received == ["lifespan"]


async def test_applied_faults_are_logged(
    app: RequestFaultMiddleware, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await call(app, "/v1/chat/completions", headers={"x-fault": "delay=0;status=418"})
    assert "fault on purpose for chat: delay=0; status=418" in caplog.text


def test_start_logs_a_warning(caplog: pytest.LogCaptureFixture, rules: FaultRules) -> None:
    with caplog.at_level(logging.WARNING):
        RequestFaultMiddleware(InnerApp(), rules, MemoryJobStore())
    assert "FAULTS_PER_REQUEST is on" in caplog.text

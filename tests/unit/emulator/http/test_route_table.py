"""Facts about a request, from its route or from the routes that share the start of its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from emulator.http.error_format import ErrorFormat
from emulator.http.route_facts import (
    Access,
    ApiRoute,
    OperationName,
    RouteGroup,
    openai_facts,
    public_facts,
)
from emulator.http.route_table import RouteTable
from emulator.http.shutdown_state import ShutdownState
from emulator.middleware.auth import ApiKeyMiddleware
from emulator.middleware.draining import DrainGate
from emulator.middleware.faults.middleware import RequestFaultMiddleware
from emulator.middleware.faults.rules import FaultRules
from emulator.middleware.request_id import RequestIdMiddleware
from jobs import MemoryJobStore
from tests.unit.emulator.asgi import InnerApp, call, serve_routes
from tests.unit.emulator.server_routes import find_route, mounted_routes

CLIENT, OPENAI, WORKER = RouteGroup.CLIENT, RouteGroup.OPENAI, RouteGroup.WORKER
RUNPOD, PROBLEM, NAMED = ErrorFormat.RUNPOD, ErrorFormat.PROBLEM, ErrorFormat.NAMED
MESSAGES, OF_OPENAI = ErrorFormat.MESSAGES, ErrorFormat.OPENAI

# Path, group, endpoint, operation, error format.
KNOWN = [
    ("/run", CLIENT, None, "run", RUNPOD),
    ("/purge-queue", CLIENT, None, "purge-queue", RUNPOD),
    ("/v2/my-ep/runsync", CLIENT, "my-ep", "runsync", RUNPOD),
    ("/v2/metrics/status/job-1", CLIENT, "metrics", "status", RUNPOD),
    ("/v2/models/run", CLIENT, "models", "run", RUNPOD),
    # A GET, as of the endpoint `run`; a POST sends a job to the endpoint `serverless`.
    ("/v2/serverless/run", CLIENT, "serverless", "workers", PROBLEM),
    ("/v2/v1/health", CLIENT, "v1", "health", RUNPOD),
    ("/v2/serverless/ping/workers", CLIENT, "ping", "workers", PROBLEM),
    ("/v2/serverless/ping/workers/w/logs", CLIENT, "ping", "workers", PROBLEM),
    ("/v2/ep/job-take/w", WORKER, "ep", "job-take", RUNPOD),
    ("/v2/ep/job-done/w/j", WORKER, "ep", "job-done", RUNPOD),
    ("/v2/serverless/ping/w", WORKER, "serverless", "ping", RUNPOD),
    ("/v1/chat/completions", OPENAI, None, "chat", OF_OPENAI),
    ("/v1/models/chat/completions", OPENAI, None, "models", OF_OPENAI),
    ("/v1/files/file-1/content", OPENAI, None, "files", OF_OPENAI),
    ("/v1/batches/b/cancel", OPENAI, None, "batches", OF_OPENAI),
    ("/v3/completions", OPENAI, None, "completions", OF_OPENAI),
    ("/v2/chat/openai/v1/embeddings", OPENAI, "chat", "embeddings", OF_OPENAI),
    ("/v2/ep/openai/v1/files/chat", OPENAI, "ep", "files", OF_OPENAI),
    ("/v2/ep/openai/v1/anything", OPENAI, "ep", "other", OF_OPENAI),
    ("/chat/completions", OPENAI, None, "chat", NAMED),
    ("/models/a/b", OPENAI, None, "models", NAMED),
    ("/system/status", OPENAI, None, "system", NAMED),
    ("/tokenize", OPENAI, None, "tokenize", OF_OPENAI),
    ("/v1/messages/count_tokens", OPENAI, None, "messages", MESSAGES),
    ("/v1/responses/r/cancel", OPENAI, None, "responses", OF_OPENAI),
    ("/api/chat", OPENAI, None, "chat", RUNPOD),
    ("/api/ps", OPENAI, None, "ps", RUNPOD),
    ("/console/jobs/j", CLIENT, None, "console", OF_OPENAI),
    ("/faults", CLIENT, None, "faults", OF_OPENAI),
    ("/metrics", RouteGroup.PUBLIC, None, "metrics", OF_OPENAI),
]
OPEN = [
    ("/", RouteGroup.PUBLIC, None, "other", OF_OPENAI),
    ("/health", RouteGroup.PUBLIC, None, "health", OF_OPENAI),
    ("/docs", RouteGroup.PUBLIC, None, "docs", OF_OPENAI),
    ("/assets/main.js", RouteGroup.PUBLIC, None, "other", OF_OPENAI),
]
UNKNOWN = [
    ("", CLIENT, None, "other", OF_OPENAI),
    ("*", CLIENT, None, "other", OF_OPENAI),
    ("//", CLIENT, None, "other", OF_OPENAI),
    ("//health", CLIENT, None, "other", OF_OPENAI),
    ("/health/", CLIENT, None, "health", OF_OPENAI),
    ("/health\n", CLIENT, None, "other", OF_OPENAI),
    ("/docs/../run", CLIENT, None, "docs", OF_OPENAI),
    ("/assets/x", CLIENT, None, "other", OF_OPENAI),
    ("/metrics/x", CLIENT, None, "metrics", OF_OPENAI),
    ("/nonsense", CLIENT, None, "other", OF_OPENAI),
    ("/RUN", CLIENT, None, "other", OF_OPENAI),
    ("/run/", CLIENT, None, "run", RUNPOD),
    ("/run\n", CLIENT, None, "other", OF_OPENAI),
    ("/v2/ep/run/x", CLIENT, "ep", "run", RUNPOD),
    ("/v2/ep", CLIENT, None, "other", OF_OPENAI),
    ("/v2/ep/", CLIENT, "ep", "other", RUNPOD),
    ("/v2//run/x", CLIENT, "", "run", RUNPOD),
    ("/v2/ep/drop tables", CLIENT, "ep", "other", RUNPOD),
    ("/v2/ep/docs", CLIENT, "ep", "docs", RUNPOD),
    ("/v2/serverless/ep/workers/w", CLIENT, "ep", "workers", PROBLEM),
    ("/v2/serverless/ep/nothing", CLIENT, "serverless", "other", PROBLEM),
    ("/v2/serverless/job-done/workers/j", CLIENT, "job-done", "workers", PROBLEM),
    ("/v2/ep/job-take", WORKER, "ep", "job-take", RUNPOD),
    ("/v2/ep/ping/w/x", WORKER, "ep", "ping", RUNPOD),
    ("/job-take/w", CLIENT, None, "job-take", OF_OPENAI),
    ("/v1", OPENAI, None, "other", OF_OPENAI),
    ("/v1//chat/completions", OPENAI, None, "chat", OF_OPENAI),
    ("/v1/run", OPENAI, None, "other", OF_OPENAI),
    ("/v1/messages/x", OPENAI, None, "messages", MESSAGES),
    ("/v1/messages2", OPENAI, None, "other", OF_OPENAI),
    ("/api/nonsense", OPENAI, None, "other", RUNPOD),
    ("/models/", OPENAI, None, "models", NAMED),
    ("/v2/ep/openai", OPENAI, "ep", "other", OF_OPENAI),
    ("/v2/ep/v1/chat/completions", OPENAI, "ep", "chat", OF_OPENAI),
    ("/v2/ep/api/chat", OPENAI, "ep", "chat", OF_OPENAI),
    ("/openai/v1/chat/completions", OPENAI, None, "chat", OF_OPENAI),
]


def test_endpoint_may_have_the_name_of_the_list_of_endpoints() -> None:
    match = find_route("/v2/serverless/run", "POST")
    assert (match.operation, match.endpoint) == ("run", "serverless")
    assert match.facts.error_format is RUNPOD


@pytest.mark.parametrize("row", [*KNOWN, *OPEN, *UNKNOWN], ids=lambda row: repr(row[0]))
def test_path_has_its_group_endpoint_operation_and_error_format(row: tuple[Any, ...]) -> None:
    path, *expected = row
    match = find_route(path)
    facts = match.facts
    assert [facts.group, match.endpoint, match.operation, facts.error_format] == expected
    assert facts.access is (Access.EVERYONE if row in OPEN else Access.KEY)
    assert (match.route is None) is (row in UNKNOWN and not path.startswith("/models/"))


def test_find_route_finds_every_route_with_the_facts_of_its_path() -> None:
    for route in mounted_routes(metrics_open=False):
        path = route.path.replace(":path", "").replace("{", "").replace("}", "")
        for method in route.methods:
            match = find_route(path, method)
            assert match.route is not None
            assert match.route.path == route.path, path
            assert match.facts is route.facts
            if "{route" not in route.path and route.facts.access is Access.KEY:
                assert match.operation is not OperationName.OTHER, path


def test_routes_of_one_path_have_the_same_facts() -> None:
    # Whether a request needs a key must not depend on its method.
    for route in mounted_routes(metrics_open=False):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            matched = find_route(route.path, method).route
            if matched is not None and matched.path == route.path:
                assert matched.facts == route.facts


def test_operation_in_a_forwarded_path_is_one_of_the_models_apis() -> None:
    async def answer(request: Request) -> Response:
        return Response()

    facts = {
        "/v1/{route:path}": openai_facts(None),
        "/api/embed": openai_facts(OperationName.EMBED),
        "/metrics": public_facts(OperationName.METRICS),
    }
    table = RouteTable(
        ApiRoute(path, answer, methods=["POST"], facts=each) for path, each in facts.items()
    )
    for path, operation in {
        "/v1/embed": OperationName.EMBED,
        "/v1/a/embed/b": OperationName.EMBED,
        "/v1/metrics": OperationName.OTHER,
        # The server has no route with this operation.
        "/v1/generate": OperationName.OTHER,
    }.items():
        assert table.find(path, "POST").operation is operation, path


async def test_request_is_served_by_the_matched_route() -> None:
    async def answer(request: Request) -> Response:
        return Response(request.method + str(request.path_params))

    facts = openai_facts(OperationName.MODELS)
    app = serve_routes(
        [
            ApiRoute("/v1/models/{model:path}", answer, methods=["GET"], facts=facts),
            ApiRoute("/v1/models", answer, methods=["POST"], facts=facts),
            ApiRoute("/v1/models", answer, methods=["DELETE"], facts=facts),
        ]
    )
    assert (await call(app, "/v1/models/a/b", scope={"root_path": ""})).body == (
        b"GET{'model': 'a/b'}"
    )
    assert (await call(app, "/v1/models", "DELETE")).body == b"DELETE{}"
    assert (await call(app, "/v1/models", "PUT")).status == 405
    assert (await call(app, "/v1/models\n", "DELETE")).status == 404
    assert (await call(app, "/v1/models/", "DELETE")).body == b"DELETE{}"
    assert (await call(app, "/v1/models/a/", scope={"root_path": ""})).body == b"GET{'model': 'a'}"


def gate(inner: InnerApp) -> ASGIApp:
    shutdown = ShutdownState()
    shutdown.start_draining()
    return DrainGate(inner, shutdown)


def broken(inner: InnerApp) -> ASGIApp:
    inner.raises = RuntimeError("a bug")
    return RequestIdMiddleware(inner)


def failing(fault: str) -> Callable[[InnerApp], ASGIApp]:
    rules = FaultRules("default")
    rules.add({"fault": fault})
    return lambda inner: RequestFaultMiddleware(inner, rules, MemoryJobStore())


@pytest.mark.parametrize(
    ("refusing", "status", "name", "openai_code"),
    [
        (lambda inner: ApiKeyMiddleware(inner, ("one",)), 401, "unauthorized", "invalid_api_key"),
        (gate, 503, "service_unavailable", 503),
        (broken, 500, "internal", 500),
        (failing("status=429"), 429, "rate_limit_exceeded", "rate_limit_exceeded"),
        (failing("status=503"), 503, "service_unavailable", 503),
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
            # The clients of S1 wait for one second.
            assert response.error["details"] == {"retry_after": 1}

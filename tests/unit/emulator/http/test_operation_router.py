"""Which of many routes a call is for, without trying them all."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route

from emulator.http.operation_router import ByOperation
from tests.unit.emulator.asgi import call


def route(path: str, method: str = "GET") -> Route:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{path} {dict(request.path_params)}")

    return Route(path, answer, methods=[method])


ROUTES = [
    route("/run", "POST"),
    route("/status/{job_id}"),
    route("/v2/{endpoint}/run", "POST"),
    route("/v2/{endpoint}/status/{job_id}"),
    route("/v1/models"),
    route("/v1/models/{model:path}"),
]
APP = Starlette(routes=[ByOperation(ROUTES), *ROUTES])


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/run", "/run {}"),
        ("POST", "/v2/mine/run", "/v2/{endpoint}/run {'endpoint': 'mine'}"),
        ("GET", "/status/run", "/status/{job_id} {'job_id': 'run'}"),
        (
            "GET",
            "/v2/run/status/a",
            "/v2/{endpoint}/status/{job_id} {'endpoint': 'run', 'job_id': 'a'}",
        ),
        ("GET", "/v1/models", "/v1/models {}"),
        ("GET", "/v1/models/a/b", "/v1/models/{model:path} {'model': 'a/b'}"),
    ],
)
async def test_call_is_answered_by_its_route(method: str, path: str, said: str) -> None:
    scope = {"type": "http", "method": method, "path": path}
    match, _ = ByOperation(ROUTES).matches(scope)
    assert match is Match.FULL
    assert (await call(APP, path, method)).body.decode() == said


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/run", 405),
        ("POST", "/v2/mine/status/a", 405),
        ("POST", "/", 404),
        ("POST", "/v2", 404),
        ("POST", "/v2/run", 404),
        ("POST", "/v2/mine/run/more", 404),
        ("POST", "/run/", 307),
    ],
)
async def test_what_is_wrong_with_a_call_is_found_as_ever(
    method: str, path: str, status: int
) -> None:
    assert (await call(APP, path, method)).status == status

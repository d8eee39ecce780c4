"""Authentication by API key and worker key (R52)."""

from __future__ import annotations

import hmac

import pytest

from emulator.http.route_facts import SCOPE_KEY
from emulator.middleware.auth import ApiKeyMiddleware
from tests.unit.emulator.asgi import InnerApp, call
from tests.unit.emulator.server_routes import route_table
from tests.virtual_time import VirtualClock

PATHS = ("/run", "/v2/ep/status/1", "/v1/models", "/v2/ep/job-take/w", "/v2/ep/health", "/nothing")
# Refused workers get a delayed response, so the tests use a virtual clock.
pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "value", ["Bearer one", "bearer one", "BEARER  two", "one", "two", " Bearer two "]
)
async def test_key_is_accepted_with_and_without_bearer(
    inner: InnerApp, path: str, value: str
) -> None:
    response = await call(
        ApiKeyMiddleware(inner, ("one", "two")), path, headers={"authorization": value}
    )
    assert (response.status, inner.calls) == (200, [path])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "three", "é"]
)
async def test_request_without_a_valid_key_is_401(
    inner: InnerApp, path: str, value: str | None
) -> None:
    headers = {} if value is None else {"authorization": value}
    response = await call(ApiKeyMiddleware(inner, ("one", "two")), path, headers=headers)
    assert (response.status, inner.calls) == (401, [])
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["content-type"] == "application/json"
    assert response.reason.startswith("an API key is needed")
    assert value != "three" or value not in response.body.decode()


async def test_refused_worker_waits_for_its_answer_and_a_client_does_not(
    inner: InnerApp, clock: VirtualClock
) -> None:
    app = ApiKeyMiddleware(inner, ("one",))
    assert (await call(app, "/run")).status == 401
    assert clock.elapsed_s == 0
    assert (await call(app, "/v2/ep/job-take/w")).status == 401
    assert clock.elapsed_s == 1


@pytest.mark.parametrize(
    "path", ["/health", "/docs", "/docs/swagger-ui-bundle.js", "/openapi.json"]
)
async def test_paths_without_job_data_are_open(inner: InnerApp, path: str) -> None:
    assert (await call(ApiKeyMiddleware(inner, ("one",)), path)).status == 200


@pytest.mark.parametrize("path", ["/health/", "/health/x", "//health", "/docsy", "/v2/health"])
async def test_similar_paths_need_a_key(inner: InnerApp, path: str) -> None:
    assert (await call(ApiKeyMiddleware(inner, ("one",)), path)).status == 401


async def test_preflight_requests_need_no_key(inner: InnerApp) -> None:
    assert (await call(ApiKeyMiddleware(inner, ("one",)), "/run", "OPTIONS")).status == 200


async def test_two_authorization_headers_are_rejected(inner: InnerApp) -> None:
    app = ApiKeyMiddleware(inner, ("one",))
    raw = [(b"authorization", b"Bearer one"), (b"authorization", b"Bearer two")]
    sent = await call(lambda s, r, send: app({**s, "headers": raw}, r, send), "/run")
    assert sent.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "one"}, 200),
        ({"x-api-key": " two "}, 200),
        ({"x-api-key": "Bearer one"}, 401),
        ({"x-api-key": "three"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "three", "authorization": "Bearer one"}, 200),
        ({"x-api-key": "one", "authorization": "Bearer three"}, 401),
    ],
)
async def test_keys_accept_x_api_key_when_there_is_no_authorization(
    inner: InnerApp, headers: dict[str, str], status: int
) -> None:  # R67
    for path in ("/run", "/v1/models", "/completions", "/v2/ep/status/1", "/metrics"):
        assert (
            await call(ApiKeyMiddleware(inner, ("one", "two")), path, headers=headers)
        ).status == status


async def test_keys_do_not_accept_x_api_key_on_the_worker_routes(inner: InnerApp) -> None:  # R67
    app = ApiKeyMiddleware(inner, ("one",))
    assert (await call(app, "/v2/ep/job-take/w", headers={"x-api-key": "one"})).status == 401


async def test_two_x_api_key_headers_are_rejected(inner: InnerApp) -> None:
    app = ApiKeyMiddleware(inner, ("one",))
    raw = [(b"x-api-key", b"one"), (b"x-api-key", b"one")]
    sent = await call(lambda s, r, send: app({**s, "headers": raw}, r, send), "/run")
    assert sent.status == 401


async def test_every_key_is_compared_completely(
    inner: InnerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    app = ApiKeyMiddleware(inner, ("first", "a much longer second one", "third"))
    for key in ("first", "nothing of the kind"):
        compared.clear()
        await call(app, "/run", headers={"authorization": key})
        assert len(compared) == 3
        assert {len(each) for pair in compared for each in pair} == {32}


async def test_open_path_needs_no_key_and_opens_no_other_path(inner: InnerApp) -> None:
    app, table = ApiKeyMiddleware(inner, ("one",)), route_table(metrics_open=True)
    for path in ("/metrics", "/metrics/", "/metrics/x", "/v2/ep/metrics", "/run"):
        response = await call(app, path, scope={SCOPE_KEY: table.find(path, "GET")})
        assert response.status == (200 if path == "/metrics" else 401)
    assert (await call(app, "/metrics")).status == 401


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/v2/ep/job-take/w", b"gpu=local&worker_key=own&job_in_progress=0", 200),
        ("/v2/ep/job-done/w/1", b"worker_key=own", 200),
        ("/v2/ep/job-done/w/1", b"worker_key=one", 401),
        ("/v2/ep/job-done/w/1", b"worker_key=", 401),
        ("/v2/ep/job-done/w/1", b"worker_key=own&worker_key=own", 401),
        ("/v2/ep/status/1", b"worker_key=own", 401),
        ("/run", b"worker_key=own", 401),
    ],
)
async def test_worker_key_opens_only_worker_routes(
    inner: InnerApp, path: str, query: bytes, status: int
) -> None:
    async def call_with_query(app: ApiKeyMiddleware) -> int:
        headers = {"authorization": "of-the-cloud"}
        response = await call(
            lambda s, r, send: app({**s, "query_string": query}, r, send), path, headers=headers
        )
        return response.status

    app = ApiKeyMiddleware(inner, ("one",), worker_key="own")
    assert await call_with_query(app) == status
    # The worker key is not a bearer token, and without a configured one none is accepted.
    assert (await call(app, path, headers={"authorization": "own"})).status == 401
    assert await call_with_query(ApiKeyMiddleware(inner, ("one",))) == 401

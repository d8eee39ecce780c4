"""Requests that a web page makes its visitor's browser send to a server on the same machine (R71).

Every route of the application is tried, as read from its route table, so a new route is tried too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.routing import Route

import emulator.runpod.remote_worker
from emulator.http.route_facts import Access
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server
from tests.security.raw_http import exchange, raw_connection, request_bytes
from tests.unit.emulator.server_routes import find_route

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
EVIL, FRIEND = "https://evil.example", "https://app.example"
CONNECTIONS = 16
JOB = b'{"input": {"prompt": "from another page"}}'
ENDPOINT, WORKER = "other", "attacker"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """A server with one queued and one failed job, on an endpoint that has no worker."""

    server: Server
    queued: str
    failed: str

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def own(self, **headers: str) -> Headers:
        """Return these headers and the server's own Host."""
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        return [("Host", self.host), *named]

    def paths(self) -> Iterator[str]:
        """Return the path of every route, with the two jobs where a job's id belongs."""
        for route in self.server.app.routes:
            if not isinstance(route, Route):
                continue
            for job_id in (self.queued, self.failed):
                yield self.fill(route.path, job_id)

    def fill(self, path: str, job_id: str) -> str:
        """Return a route's path with its parameters filled in."""
        values = {
            "endpoint": ENDPOINT,
            "job_id": job_id,
            "worker": WORKER,
            "model": "scripted",
            "file_id": "file-1",
            "batch_id": "batch-1",
            "response_id": "resp_1",
            "route": "chat/completions",
        }
        return _PARAMETER.sub(lambda match: values[match[1]], path)

    async def state(self) -> Any:
        """Return everything that a page could have changed."""
        responses = {}
        for path in (
            f"/v2/{ENDPOINT}/requests",
            f"/v2/{ENDPOINT}/health",
            "/v2/default/requests",
            "/v1/files",
            "/v1/batches",
        ):
            response = await exchange(self.port, "GET", path, self.own())
            assert response.status == 200, path
            responses[path] = json.loads(response.body)
        for job in responses[f"/v2/{ENDPOINT}/requests"]["requests"]:
            job.pop("delayTime", None)
        return responses


async def prepare(serve: Serve, **settings: Any) -> Target:
    """Start a server; leave one job queued and one failed there."""
    server = await serve(poll_hold_s=0.1, **settings)
    own = [("Host", f"127.0.0.1:{server.port}"), ("Authorization", "secret")]

    async def ask(method: str, path: str, body: bytes | None = None) -> Any:
        response = await exchange(server.port, method, path, own, body)
        assert response.status == 200, (path, response)
        return json.loads(response.body)

    base = f"/v2/{ENDPOINT}"
    failed = (await ask("POST", f"{base}/run", JOB))["id"]
    assert (await ask("GET", f"{base}/job-take/w1"))["id"] == failed
    await ask("POST", f"{base}/job-done/w1/{failed}", b'{"error": "on purpose"}')
    queued = (await ask("POST", f"{base}/run", JOB))["id"]
    return Target(server, queued, failed)


@pytest.fixture
async def target(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Target:
    # The call for a job of a new worker waits so long for the worker's call for stops, which never
    # comes here.
    monkeypatch.setattr(emulator.runpod.remote_worker, "_FIRST_STOP_POLL_TIMEOUT_S", 0.0)
    return await prepare(serve)


def is_open(path: str) -> bool:
    """Return whether the server's pages and health are at a path."""
    return find_route(path).facts.access is Access.EVERYONE


async def refused_everywhere(target: Target, headers: Headers) -> None:
    """Try every method of every route with these headers: 403 and no effect.

    Public pages may be read and not written.
    """
    before = await target.state()
    paths = sorted(set(target.paths()))
    requests = [(method, path) for path in paths if not is_open(path) for method in METHODS]
    requests += [("GET", path) for path in paths if is_open(path)]
    assert len(requests) > 300
    let_through: list[str] = []

    async def attempt_all(queue: Iterator[tuple[str, str]]) -> None:
        async with raw_connection(target.port) as connection:
            for method, path in queue:
                body = None if method in ("GET", "HEAD", "OPTIONS") else JOB
                await connection.send(request_bytes(method, path, headers, body))
                response = await connection.response(method)
                if is_open(path):
                    assert response.status in (200, 404), path
                elif response.status != 403:
                    let_through.append(f"{method} {path}: {response.status}")
                elif method != "HEAD":
                    assert read_reason(json.loads(response.body)), path

    queue = iter(requests)
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(attempt_all(queue))
    assert let_through == [], f"{len(let_through)} of {len(requests)} requests"
    assert await target.state() == before


async def refused(target: Target, headers: Headers) -> None:
    """Try one route of each kind with these headers."""
    for method, path in (
        ("GET", "/v1/models"),
        ("POST", "/run"),
        ("POST", f"/v2/{ENDPOINT}/cancel/{target.queued}"),
        ("POST", f"/v2/{ENDPOINT}/job-done/{WORKER}/{target.queued}"),
        ("OPTIONS", "/v1/completions"),
        ("POST", "/no/such/route"),
    ):
        body = JOB if method == "POST" else None
        response = await exchange(target.port, method, path, headers, body)
        assert response.status == 403, (method, path)
        assert b"ALLOWED_HOSTS" in response.body or b"CORS_ORIGINS" in response.body


@pytest.mark.long
async def test_page_of_another_origin_is_refused_on_every_route(target: Target) -> None:
    await refused_everywhere(target, target.own(Origin=EVIL))


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "file://",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
        "http://localhost:{port}",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}/",
        "http://127.0.0.1:{port}@evil.example",
        "http://evil.example:{port}",
        "127.0.0.1:{port}",
        "",
    ],
)
async def test_origin_that_resembles_the_servers_is_refused(target: Target, origin: str) -> None:
    await refused(target, target.own(Origin=origin.format(port=target.port)))


@pytest.mark.long_except("cross-site")
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_request_without_origin_from_another_site_is_refused_on_every_route(
    target: Target, site: str
) -> None:  # images, scripts, frames, links; another port of localhost is "same-site"
    await refused_everywhere(target, target.own(Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors"))


@pytest.mark.parametrize("site", ["same-site", "cross-site", "none", "something-new", ""])
async def test_foreign_origin_is_refused_whatever_site_it_is_of(target: Target, site: str) -> None:
    await refused(target, target.own(Origin=EVIL, Sec_Fetch_Site=site))


async def test_second_origin_or_host_does_not_hide_a_foreign_one(target: Target) -> None:
    own, evil = f"http://{target.host}", "evil.example"
    for headers in (
        [("Host", target.host), ("Origin", own), ("Origin", EVIL)],
        [("Host", target.host), ("Origin", EVIL), ("Origin", own)],
        [("Host", target.host), ("Host", evil)],
        [("Host", evil), ("Host", target.host)],
        [("Host", target.host), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "none")],
    ):
        response = await exchange(target.port, "GET", "/v1/models", headers)
        # The HTTP layer may refuse a second Host with 400 before this check.
        assert response.status in (400, 403), headers


async def test_page_that_rebinds_its_name_is_refused_on_every_route(target: Target) -> None:
    name = f"evil.example:{target.port}"
    own = [("Origin", f"http://{name}"), ("Sec-Fetch-Site", "same-origin")]
    await refused_everywhere(target, [("Host", name), *own])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:{port}",
        "localhost.evil.example",
        "evil-localhost",
        "2130706433",
        "worker",
        "board.local",
        "host.docker.internal:{port}",
        # Not this server's address: it listens on 127.0.0.1 alone.
        "192.0.2.7:{port}",
        "[2001:db8::1]:{port}",
        "x" * 5000,
        "",
    ],
)
async def test_host_that_is_not_the_servers_is_refused(target: Target, host: str) -> None:
    await refused(target, [("Host", host.format(port=target.port))])


@pytest.mark.parametrize(
    "host", ["localhost@evil.example", "127.0.0.1:80:1", "127.0.0.1 evil.example", "[::1"]
)
async def test_host_that_is_none_is_refused_before_it_is_compared(
    target: Target, host: str
) -> None:
    for path in ("/v1/models", "/health"):
        assert (await exchange(target.port, "GET", path, [("Host", host)])).status == 400


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:{port}", "localhost.", "api.localhost:1", "127.0.0.1", "127.8.9.1:80"],
)
async def test_loopback_name_is_accepted_with_any_port(target: Target, host: str) -> None:
    # Another port: a tunnel or a published port of a container.
    name = host.format(port=target.port)
    for more in ([], [("Origin", f"http://{name.lower()}")]):
        response = await exchange(target.port, "GET", "/v1/models", [("Host", name), *more])
        assert response.status == 200


async def test_http_1_0_client_without_a_host_is_accepted(target: Target) -> None:
    async with raw_connection(target.port) as connection:
        await connection.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await connection.response()).status == 200


@pytest.mark.parametrize("keys", ["", "secret"])
async def test_rebound_name_is_refused_with_and_without_keys(serve: Serve, keys: str) -> None:
    target = await prepare(serve, api_keys=keys)
    await refused(target, [("Host", "evil.example"), ("Authorization", "Bearer secret")])


async def test_public_pages_open_from_any_site_and_by_any_name(target: Target) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    for path in ("/", "/docs", "/health", "/openapi.json", "/assets/main.js"):
        for headers in (target.own(**link), target.own(Origin=EVIL), [("Host", "evil.example")]):
            response = await exchange(target.port, "GET", path, headers)
            assert response.status == 200, path
            assert not any(name.startswith("access-control") for name in response.headers)


async def test_address_bar_console_and_programs_are_served(target: Target) -> None:
    body = b'{"input": {"prompt": "x"}}'
    label = ("Content-Type", "application/json")
    address_bar = target.own(Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate")
    console = target.own(Origin=f"http://{target.host}", Sec_Fetch_Site="same-origin")
    old_console = target.own(Origin=f"http://{target.host}")
    node = target.own(Sec_Fetch_Mode="cors")
    for headers in (address_bar, console, old_console, node, target.own()):
        response = await exchange(target.port, "GET", "/v1/models", headers)
        assert response.status == 200
    for headers in (console, old_console, node, target.own()):
        run = f"/v2/{ENDPOINT}/run"
        response = await exchange(target.port, "POST", run, [*headers, label], body)
        assert response.status == 200


async def test_upload_of_a_foreign_form_is_refused_unread(target: Target) -> None:
    boundary = "x"
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
        f'\r\n{{"custom_id": "1", "method": "POST", "url": "/v1/completions", '
        f'"body": {{"model": "scripted", "prompt": "x"}}}}\r\n--{boundary}--\r\n'
    ).encode()
    label = ("Content-Type", f"multipart/form-data; boundary={boundary}")
    before = await target.state()
    for origin in (EVIL, "null"):
        headers = [*target.own(Origin=origin), label]
        response = await exchange(target.port, "POST", "/v1/files", headers, form)
        assert response.status == 403
    assert await target.state() == before
    headers = [*target.own(Origin=f"http://{target.host}"), label]
    assert (await exchange(target.port, "POST", "/v1/files", headers, form)).status == 200


@pytest.mark.long_except(
    "mark0-None",
    "mark1-text/plain",
    "mark2-multipart/form-data",
    "mark3-application/x-www-form-urlencoded",
    "mark4-text/plain",
)
@pytest.mark.long_except(
    *("mark0-None", "mark0-application/x-www-form-urlencoded", "mark0-multipart/form-data"),
    *(f"mark{number}-text/plain" for number in range(5)),
)
@pytest.mark.parametrize(
    "label", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize(
    "mark",
    [
        {"Origin": "http://{host}"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Dest": "empty"},
    ],
)
async def test_body_of_a_browser_that_is_not_labelled_json_is_refused_by_every_post_route(
    target: Target, label: str | None, mark: dict[str, str]
) -> None:  # R70: also from the server's own page, where the Origin alone would let it through
    more = [("Content-Type", label)] if label else []
    marked = {name: value.format(host=target.host) for name, value in mark.items()}
    own = [*target.own(**marked), ("Authorization", "secret"), *more]
    no_body = (
        "/status",
        "/status-sync",
        "/stream",
        "/cancel",
        "/retry",
        "/purge",
        "/reset",
        "/requests",
    )
    before = await target.state()
    tried = 0
    for route in target.server.app.routes:
        if not isinstance(route, Route) or "POST" not in (route.methods or ()):
            continue
        path = target.fill(route.path, target.queued)
        bare = path.removeprefix(f"/v2/{ENDPOINT}")
        if bare.startswith(no_body) or bare == "/health" or bare.endswith("/cancel"):
            continue
        response = await exchange(target.port, "POST", path, own, JOB)
        # A form is what uploads are made of; this one has no boundary.
        is_upload = path == "/v1/files" and label == "multipart/form-data"
        assert response.status == (400 if is_upload else 415), path
        tried += 1
    assert tried > 20
    assert await target.state() == before


TAKES = [f"/v2/{ENDPOINT}/job-take/{WORKER}", f"/v2/{ENDPOINT}/job-take-batch/{WORKER}"]
IMAGE = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}
SAFARI = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/15.6 Safari"


@pytest.mark.long_except(
    f"headers0-{TAKES[1]}", *(f"headers{number}-{TAKES[0]}" for number in range(7))
)
@pytest.mark.parametrize("path", TAKES)
@pytest.mark.parametrize(
    "headers",
    [
        IMAGE,
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Site": "same-origin"},
        # A browser that knows neither header, and images of it.
        {"User_Agent": SAFARI, "Referer": EVIL},
        {"User_Agent": SAFARI},
        # `http://user:password@127.0.0.1/`
        {"User_Agent": SAFARI, "Authorization": "Basic dXNlcjpwYXNzd29yZA=="},
    ],
)
async def test_image_of_a_page_leases_no_job(
    target: Target, path: str, headers: dict[str, str]
) -> None:
    before = await target.state()
    response = await exchange(target.port, "GET", path, target.own(**headers))
    assert response.status in (401, 403)
    assert b"lease" not in response.body
    assert await target.state() == before


async def test_allowed_hosts_opens_the_named_hosts_only(serve: Serve) -> None:
    target = await prepare(serve, allowed_hosts="llm.example.com,*.friends.example")
    for name in ("llm.example.com", "LLM.example.com:443", "a.friends.example", target.host):
        response = await exchange(target.port, "GET", "/v1/models", [("Host", name)])
        assert response.status == 200, name
    for name in ("evil.example", "x.llm.example.com", "friends.example", "llm.example.com.evil.x"):
        await refused(target, [("Host", name)])


@pytest.mark.parametrize("path", TAKES)
async def test_worker_takes_jobs_from_loopback_or_with_a_credential(
    target: Target, path: str
) -> None:
    response = await exchange(target.port, "GET", path, target.own(User_Agent="curl/8"))
    assert response.status == 200


@pytest.mark.parametrize(
    ("credential", "status"),
    [({}, 401), ({"Authorization": ""}, 401), ({"Authorization": "k"}, 200)],
)
async def test_worker_of_another_machine_needs_a_credential_although_there_are_no_keys(
    target: Target, credential: dict[str, str], status: int
) -> None:
    # From a proxy on this machine, which uvicorn believes: an address of another one.
    headers = target.own(X_Forwarded_For="192.0.2.7", **credential)
    response = await exchange(target.port, "GET", TAKES[0], headers)
    assert response.status == status


@pytest.mark.long_except("own-/", "foreign-/v1/models", "none-/health", f"foreign-{TAKES[0]}")
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", TAKES[0], "/nowhere"])
@pytest.mark.parametrize("page", ["own", "foreign", "none"])
async def test_websocket_handshake_is_refused(target: Target, path: str, page: str) -> None:
    origin = {"own": f"http://{target.host}", "foreign": EVIL}.get(page)
    headers = [
        *target.own(Connection="Upgrade", Upgrade="websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        *([("Origin", origin)] if origin else []),
    ]
    before = await target.state()
    response = await exchange(target.port, "GET", path, headers)
    assert response.status == 400
    assert "WebSocket" in read_reason(json.loads(response.body))
    assert await target.state() == before


async def test_cors_origins_opens_every_route_to_the_named_page_only(serve: Serve) -> None:
    target = await prepare(serve, cors_origins=f"{FRIEND}, http://localhost:3000")
    for site in ("cross-site", "same-site"):
        friend = target.own(Origin=FRIEND, Sec_Fetch_Site=site)
        response = await exchange(target.port, "GET", "/v1/models", friend)
        assert response.status == 200
        assert response.headers["access-control-allow-origin"] == FRIEND
    await refused(target, target.own(Origin="http://localhost:3001", Sec_Fetch_Site="same-site"))
    # No header says which page an image is of.
    await refused(target, target.own(**IMAGE))
    await refused(target, [("Host", "evil.example"), ("Origin", FRIEND)])


async def test_cors_origins_star_opens_all_but_host_names_and_worker_routes(serve: Serve) -> None:
    target = await prepare(serve, cors_origins="*")
    for headers in (target.own(Origin=EVIL), target.own(Origin="null"), target.own(**IMAGE)):
        assert (await exchange(target.port, "GET", "/v1/models", headers)).status == 200
    assert (await exchange(target.port, "GET", TAKES[0], target.own(**IMAGE))).status == 401
    await refused(target, [("Host", "evil.example"), ("Origin", EVIL)])


async def test_preflight_of_a_foreign_page_is_refused_and_names_no_origin(target: Target) -> None:
    preflight = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x-a"}
    for private in ({}, {"Access_Control_Request_Private_Network": "true"}):
        headers = target.own(Origin=EVIL, **preflight, **private)
        response = await exchange(target.port, "OPTIONS", "/run", headers)
        assert response.status == 403
        assert not any(name.startswith("access-control") for name in response.headers)


async def test_refused_request_is_logged_and_counted(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    response = await exchange(target.port, "POST", "/run", target.own(Origin=EVIL), JOB)
    assert response.headers["x-request-id"]
    (record,) = [each for each in caplog.records if each.getMessage() == "POST /run 403"]
    assert EVIL in str(record.__dict__)
    metrics = await exchange(target.port, "GET", "/metrics", target.own())
    lines = [each for each in metrics.body.decode().splitlines() if "http_requests_total{" in each]
    assert any('"run"' in line and '"403"' in line for line in lines), lines

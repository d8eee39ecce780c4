"""The console's page over HTTP: security headers, and revalidation with its ETag."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp

from emulator.console.pages import ASSETS, PageRoutes
from emulator.http.route_facts import Access
from emulator.http.route_table import RouteLookupMiddleware, RouteTable
from emulator.middleware.auth import ApiKeyMiddleware
from tests.unit.emulator.asgi import call
from tests.unit.emulator.server_routes import find_route


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    routes = PageRoutes().routes()
    return RouteLookupMiddleware(
        ApiKeyMiddleware(Starlette(routes=routes), ("a-key",)), RouteTable(routes)
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/assets/main.js",
        "/assets/styles/base.css",
        "/assets/server/api.js",
        "/assets/icon.svg",
    ],
)
async def test_file_needs_no_key_and_has_a_strict_policy(app: ASGIApp, path: str) -> None:
    response = await call(app, path)
    assert (response.status, response.body) == (200, ASSETS[path].body)
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert not {"script-src", "style-src", "connect-src"} & policy.keys()
    assert policy["img-src"] == "'self' data:"
    assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["content-type"] == ASSETS[path].content_type


async def test_known_file_is_answered_with_304(app: ASGIApp) -> None:
    first = await call(app, "/")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        response = await call(app, "/", headers={"if-none-match": known})
        assert (response.status, response.body) == (304, b"")
        assert response.headers["etag"] == first.headers["etag"]
        assert "content-security-policy" in response.headers
    assert (await call(app, "/", headers={"if-none-match": '"other"'})).status == 200


async def test_every_file_has_its_own_etag() -> None:
    assert len({asset.etag for asset in ASSETS.values()}) == len(ASSETS)


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/server",
        "/assets/server/",
        "/assets/../assets.py",
        "/assets/%2e%2e/assets.py",
        "/assets/main.py",
        "//",
    ],
)
async def test_other_paths_are_neither_served_nor_open(app: ASGIApp, path: str) -> None:
    assert (await call(app, path)).status == 401
    assert (await call(app, path, headers={"authorization": "a-key"})).status == 404


def test_page_is_open_and_console_routes_are_not() -> None:
    for path in ("/", "/assets/main.js"):
        assert find_route(path).facts.access is Access.EVERYONE
    for path in ("/console/jobs", "/console/jobs/1", "/console/description"):
        assert find_route(path).facts.access is Access.KEY

"""Pages of other origins, by CORS_ORIGINS: off unless set, on every answer where it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import join_text, parse_chunks

PAGE, OTHER = "https://app.example", "https://evil.example"
KEY = {"authorization": "Bearer secret"}
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-lang",
}
ALLOW = "access-control-allow-origin"
ROUTES = ("/v1/completions", "/completions", "/v3/completions", "/v2/default/openai/v1/completions")


async def test_off_unless_set(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        preflight = await client.options("/v1/completions", headers=PREFLIGHT)
        assert preflight.status_code == 403
        answer = await client.get("/v1/models", headers={"origin": PAGE})
        assert answer.status_code == 403
        for response in (preflight, answer):
            assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("path", [*ROUTES, "/run", "/v2/default/status/x", "/health"])
async def test_preflight_needs_no_key(serve: Serve, path: str) -> None:  # R52
    server = await serve(cors_origins=f"https://a.example, {PAGE}", api_keys="secret")
    async with server.client() as client:
        response = await client.options(path, headers=PREFLIGHT)
    assert response.status_code == 200
    assert response.headers[ALLOW] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    # The openai package for browsers sends headers of its own.
    assert (
        response.headers["access-control-allow-headers"]
        == (PREFLIGHT["access-control-request-headers"])
    )
    assert "Origin" in response.headers["vary"]


async def test_page_on_the_internet_may_reach_a_server_at_home(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE)
    asked = PREFLIGHT | {"access-control-request-private-network": "true"}
    async with server.client() as client:
        response = await client.options("/v1/completions", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-private-network"] == "true"


async def test_every_answer_is_shown_to_the_page(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE, api_keys="secret", endpoint_id="here")
    known = {"origin": PAGE, **KEY}
    asked: list[tuple[int, str, str, dict[str, str], Any]] = [
        (200, "POST", "/v1/completions", known, {"prompt": "x"}),
        (200, "POST", "/v2/here/runsync", known, {"input": {"prompt": "x"}}),
        (200, "GET", "/health", {"origin": PAGE}, None),
        (401, "POST", "/v1/completions", {"origin": PAGE}, {"prompt": "x"}),
        (400, "POST", "/v1/completions", known, {"prompt": 5}),
        (404, "GET", "/nowhere", known, None),
        (405, "GET", "/run", known, None),
    ]
    async with server.client() as client:
        for status, method, path, headers, body in asked:
            response = await client.request(method, path, headers=headers, json=body)
            assert response.status_code == status
            assert response.headers[ALLOW] == PAGE, path
            # R55: a script can tell which request it was.
            assert "x-request-id" in response.headers["access-control-expose-headers"]
            assert response.headers["x-request-id"]
            assert "access-control-allow-credentials" not in response.headers


async def test_what_the_routes_did_not_expect_is_shown_as_well(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:  # R53
    server = await serve(cors_origins=PAGE)

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("emulator.runpod.worker_registry.WorkerRegistry.count_workers", broken)
    async with server.client() as client:
        response = await client.get("/v2/default/health", headers={"origin": PAGE})
    assert response.status_code == 500
    assert response.headers[ALLOW] == PAGE


@pytest.mark.parametrize("path", ROUTES)
async def test_streams_are_shown_to_the_page(
    serve: Serve, script: ScriptFactory, path: str
) -> None:
    server = await serve(script({"pieces": ["a", "b"]}), cors_origins=PAGE, model_name="m")
    body = {"model": "m", "prompt": "x", "stream": True}
    async with server.client() as client:
        response = await client.post(path, json=body, headers={"origin": PAGE})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers[ALLOW] == PAGE
    assert join_text(parse_chunks(response.content)) == "ab"


async def test_other_origins_are_not_let_in(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE)
    async with server.client() as client:
        preflight = await client.options("/run", headers=PREFLIGHT | {"origin": OTHER})
        assert preflight.status_code == 400
        answer = await client.get("/v1/models", headers={"origin": OTHER})
        assert answer.status_code == 403
        for response in (preflight, answer):
            assert ALLOW not in response.headers
            assert "Origin" in response.headers["vary"]


async def test_star_is_all(serve: Serve) -> None:
    server = await serve(cors_origins="*", api_keys="secret")
    async with server.client() as client:
        for origin in (PAGE, OTHER, "null"):
            preflight = await client.options("/run", headers=PREFLIGHT | {"origin": origin})
            answer = await client.get("/v1/models", headers={"origin": origin, **KEY})
            assert preflight.status_code == answer.status_code == 200
            assert preflight.headers[ALLOW] == answer.headers[ALLOW] == "*"

"""CORS_ORIGINS: off by default; when set, every response has the CORS headers."""

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


async def test_cors_is_off_by_default(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        preflight = await client.options("/v1/completions", headers=PREFLIGHT)
        assert preflight.status_code == 403
        response_to_get = await client.get("/v1/models", headers={"origin": PAGE})
        assert response_to_get.status_code == 403
        for response in (preflight, response_to_get):
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


async def test_private_network_access_is_allowed_for_allowed_origins(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE)
    preflight_headers = PREFLIGHT | {"access-control-request-private-network": "true"}
    async with server.client() as client:
        response = await client.options("/v1/completions", headers=preflight_headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-private-network"] == "true"


async def test_every_response_has_the_cors_headers(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE, api_keys="secret", endpoint_id="here")
    with_key = {"origin": PAGE, **KEY}
    cases: list[tuple[int, str, str, dict[str, str], Any]] = [
        (200, "POST", "/v1/completions", with_key, {"prompt": "x"}),
        (200, "POST", "/v2/here/runsync", with_key, {"input": {"prompt": "x"}}),
        (200, "GET", "/health", {"origin": PAGE}, None),
        (401, "POST", "/v1/completions", {"origin": PAGE}, {"prompt": "x"}),
        (400, "POST", "/v1/completions", with_key, {"prompt": 5}),
        (404, "GET", "/nowhere", with_key, None),
        (405, "GET", "/run", with_key, None),
    ]
    async with server.client() as client:
        for status, method, path, headers, body in cases:
            response = await client.request(method, path, headers=headers, json=body)
            assert response.status_code == status
            assert response.headers[ALLOW] == PAGE, path
            # R55: a script can read the request id.
            assert "x-request-id" in response.headers["access-control-expose-headers"]
            assert response.headers["x-request-id"]
            assert "access-control-allow-credentials" not in response.headers


async def test_unexpected_errors_have_the_cors_headers(
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
async def test_streams_have_the_cors_headers(
    serve: Serve, script: ScriptFactory, path: str
) -> None:
    server = await serve(script({"pieces": ["a", "b"]}), cors_origins=PAGE, model_name="m")
    body = {"model": "m", "prompt": "x", "stream": True}
    async with server.client() as client:
        response = await client.post(path, json=body, headers={"origin": PAGE})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers[ALLOW] == PAGE
    assert join_text(parse_chunks(response.content)) == "ab"


async def test_other_origins_are_refused(serve: Serve) -> None:
    server = await serve(cors_origins=PAGE)
    async with server.client() as client:
        preflight = await client.options("/run", headers=PREFLIGHT | {"origin": OTHER})
        assert preflight.status_code == 400
        response_to_get = await client.get("/v1/models", headers={"origin": OTHER})
        assert response_to_get.status_code == 403
        for response in (preflight, response_to_get):
            assert ALLOW not in response.headers
            assert "Origin" in response.headers["vary"]


async def test_star_allows_all_origins(serve: Serve) -> None:
    server = await serve(cors_origins="*", api_keys="secret")
    async with server.client() as client:
        for origin in (PAGE, OTHER, "null"):
            preflight = await client.options("/run", headers=PREFLIGHT | {"origin": origin})
            response_to_get = await client.get("/v1/models", headers={"origin": origin, **KEY})
            assert preflight.status_code == response_to_get.status_code == 200
            assert preflight.headers[ALLOW] == response_to_get.headers[ALLOW] == "*"

"""Warnings about misspelled and misplaced keys, over HTTP and in the log (R61, R66, R67, R70)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import parse_chunks

TYPO = "max_token is unknown and was ignored: did you mean max_tokens?"
INSIDE_INPUT = "input.max_tokens was ignored: put it in input.sampling_params"
OUTSIDE_INPUT = "temperature was ignored: put it in input.sampling_params"
CHAT = {"messages": [{"role": "user", "content": "a b"}]}


@pytest.mark.parametrize("prefix", ["/v1", "", "/v3"])
@pytest.mark.parametrize(
    ("route", "body"), [("completions", {"prompt": "a b"}), ("chat/completions", CHAT)]
)
async def test_openai_answers_have_warnings_complete_and_streamed(
    serve: Serve, caplog: pytest.LogCaptureFixture, prefix: str, route: str, body: dict[str, Any]
) -> None:
    server = await serve(rate_limit_chat="off")
    async with server.client() as client:
        [model] = (await client.get("/v1/models")).json()["data"]
        request = {**body, "model": model["id"], "max_token": 5}
        complete = await client.post(f"{prefix}/{route}", json=request)
        streamed = await client.post(f"{prefix}/{route}", json={**request, "stream": True})
    assert complete.json()["warnings"] == [TYPO]
    warnings = [
        chunk["warnings"] for chunk in parse_chunks(streamed.content) if "warnings" in chunk
    ]
    assert warnings == [[TYPO]]
    assert sum(TYPO in message for message in caplog.messages) == 2


async def test_jobs_have_warnings_in_the_output_and_in_the_job(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    job = {"input": {"prompt": "a b", "max_tokens": 5}, "temperature": 0.5}
    async with server.client() as client:
        accepted = (await client.post("/run", json=job)).json()
        ended = (await client.post("/runsync", json=job)).json()
    assert accepted["warnings"] == ended["warnings"] == [OUTSIDE_INPUT]
    assert ended["output"]["warnings"] == [INSIDE_INPUT]
    assert any(INSIDE_INPUT in message for message in caplog.messages)
    assert OUTSIDE_INPUT in caplog.messages


async def test_openai_call_in_a_job_warns(serve: Serve) -> None:
    server = await serve()
    call = {"openai_route": "/v1/completions", "openai_input": {"prompt": "a", "max_token": 5}}
    async with server.client() as client:
        ended = (await client.post("/runsync", json={"input": {**call, "top_p": 1}})).json()
    assert sorted(ended["output"]["warnings"]) == [
        "input.top_p was ignored: put it in input.openai_input",
        TYPO,
    ]


async def test_tokenize_warns(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        response = await client.post("/tokenize", json={"promt": "x", "prompt": "a b"})
    assert response.json()["warnings"] == ["promt is unknown and was ignored: did you mean prompt?"]


async def test_body_as_curl_sends_it_is_accepted(serve: Serve) -> None:  # R70, R67
    server = await serve(api_keys="secret")
    headers = {"content-type": "application/x-www-form-urlencoded", "x-api-key": "secret"}
    async with server.client() as client:
        for path in ("/v1/completions", "/completions"):
            response = await client.post(path, content=b'{"prompt": "a b"}', headers=headers)
            assert response.status_code == 200, response.text
        content = b'{"input": {"prompt": "a b", "sampling_params": {"max_tokens": 2.0}}}'
        response = await client.post("/runsync", content=content, headers=headers)
        assert response.json()["status"] == "COMPLETED"
        browser = {**headers, "origin": server.url}
        response = await client.post("/v1/completions", content=b"{}", headers=browser)
        assert response.status_code == 415

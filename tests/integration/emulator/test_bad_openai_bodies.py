"""Hostile request bodies get a clean error or a correct answer, on every family of routes.

The tests of the parameters check single values; these tests check complete bodies.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from engine.hooks import RequestStarted
from handler.input.messages import MAX_MESSAGES
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve

MODEL = "tiny"
FAMILIES = ["/v1", "/v3", ""]
ROUTES = [f"{family}{kind}completions" for family in FAMILIES for kind in ("/", "/chat/")]
# Routes that send the request through the queue.
QUEUED = [f"/v2/default/openai/v1{kind}completions" for kind in ("/", "/chat/")]
JSON = {"content-type": "application/json"}
MEGABYTE = 1_000_000
LEVELS = 100_000
# orjson reads this depth, but writes at most 254 levels.
READABLE_LEVELS = 900


@asynccontextmanager
async def echo_client(
    serve: Serve, script: ScriptFactory, **settings: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client of a server that echoes prompts; then check that all routes still answer."""
    path = script(context_length=settings.pop("context_length", 4096))
    server = await serve(path, model_name=MODEL, rate_limit_chat="off", **settings)
    async with server.client() as client:
        yield client
        await server.wait_until_idle()
        for route in ROUTES:
            response = await client.post(route, content=body(route, "all is well"), headers=JSON)
            assert response.status_code == 200
            assert answer_text(response).count("all is well") == 1


def body(route: str, prompt: Any = "hi", **fields: Any) -> bytes:
    """Return a valid body, changed by the given fields."""
    request: dict[str, Any] = {"prompt": prompt}
    if "chat" in route:
        request = {"messages": [{"role": "user", "content": prompt}]}
    return json.dumps({"model": MODEL, **request, **fields}).encode()


def answer_text(response: httpx2.Response) -> str:
    (choice,) = response.json()["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def check_error(route: str, response: httpx2.Response, status: int = 400) -> str:
    """Check that the body is only an error in the family's format, and return its message."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    if route.startswith("/v"):
        assert {"message", "type", "param", "code"} <= set(error)
        assert error["type"] == "invalid_request_error"
        assert error["code"] in (status, "context_length_exceeded")
    else:
        assert isinstance(error["code"], str)
    message = error["message"]
    assert "Traceback" not in response.text
    # The message is short: it does not repeat the complete value.
    assert 0 < len(message) < 300
    return str(message)


NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "deep arrays": b"[" * LEVELS,
    "closed deep arrays": b'{"prompt": ' + b"[" * LEVELS + b"]" * LEVELS + b"}",
    "deep objects": b'{"messages": ' + b'{"a": ' * LEVELS + b"1" + b"}" * LEVELS + b"}",
    "invalid UTF-8": b'{"prompt": "\xff\xfe", "messages": []}',
    "half a character": b'{"prompt": "\xf0\x9f\x98", "messages": []}',
    "an overlong character": b'{"prompt": "\xc0\xaf", "messages": []}',
    "a surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80", "messages": []}',
    "UTF-16": '{"prompt": "hi"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "hi"}',
    "a NUL": b'{"prompt": "a\0b", "messages": []}',
    "a NUL behind": b'{"prompt": "hi"}\0',
    "NULs": b"\0" * 1000,
    "a lone high surrogate": b'{"prompt": "\\ud800", "messages": []}',
    "a lone low surrogate": b'{"prompt": "\\udc00", "messages": []}',
    "surrogates the wrong way round": b'{"prompt": "\\udc00\\ud800", "messages": []}',
    "a lone surrogate in a key": b'{"\\ud800": 1, "prompt": "hi"}',
    "NaN": b'{"prompt": "hi", "temperature": NaN}',
    "Infinity": b'{"prompt": "hi", "temperature": Infinity}',
    "-Infinity": b'{"prompt": "hi", "top_p": -Infinity}',
    "1e400": b'{"prompt": "hi", "temperature": 1e400}',
    "a number of 5,000 digits": b'{"prompt": "hi", "seed": ' + b"9" * 5000 + b"}",
    "two bodies": b'{"prompt": "hi"}{"prompt": "hi"}',
}


@pytest.mark.long_except("/v1/chat/completions", "/completions", "/v3/completions")
@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_body_that_is_no_json(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R53
    server = await serve(script(), model_name=MODEL, rate_limit_chat="off")
    async with server.client() as client:
        for name, content in NO_JSON.items():
            response = await client.post(route, content=content, headers=JSON)
            assert check_error(route, response).startswith("the body is not JSON: "), name
        assert server.events.of(RequestStarted) == []
        response = await client.post(route, content=body(route), headers=JSON)
    assert response.status_code == 200


@pytest.mark.long_except("/v1/chat/completions", "/v3/completions")
@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_numbers_that_are_too_large(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R8, R9, R53: the largest numbers that our JSON readers accept, and one above the limit.
    async with echo_client(serve, script) as client:
        cases: list[tuple[str, Any]] = [
            ("max_tokens", 2**32),
            ("max_tokens", 2**64),
            ("max_tokens", 10**300),
            ("max_tokens", 1e308),
            ("temperature", 1e308),
            ("temperature", 2**63),
            ("top_p", -1e308),
            ("seed", 2**63),
            ("seed", -(2**63) - 1),
            ("top_k", 10**300),
            ("n", 2**64),
            ("frequency_penalty", 5e300),
        ]
        for name, value in cases:
            response = await client.post(route, content=body(route, **{name: value}), headers=JSON)
            assert check_error(route, response).startswith(f"{name} must be "), (name, value)
        tiny = await client.post(route, content=body(route, temperature=1e-320), headers=JSON)
        assert tiny.status_code == 200


@pytest.mark.long_except("/v1/chat/completions", "/v3/completions")
@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_last_of_two_keys_counts(serve: Serve, script: ScriptFactory, route: str) -> None:
    # The JSON standard leaves duplicate keys open; common readers use the last one.
    async with echo_client(serve, script) as client:
        duplicated = body(route, "first")[:-1] + b", " + body(route, "second")[1:]
        response = await client.post(route, content=duplicated, headers=JSON)
        assert response.status_code == 200
        assert "second" in answer_text(response)
        assert "first" not in answer_text(response)
        wrong = body(route)[:-1] + b', "n": 1, "n": "one"}'
        refused = await client.post(route, content=wrong, headers=JSON)
        assert check_error(route, refused).startswith("n must be ")


@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_characters_that_are_rare_and_legal(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    # A NUL and a pair of surrogates, escaped as JSON escapes them, are text like any other.
    rare = "a\0b \U0001f600 \ufffe \u2028 \x7f"
    async with echo_client(serve, script) as client:
        for stop in ("\0x", "\U0001f600x"):
            content = body(route, rare, stop=stop)
            assert b"\\u0000" in content
            assert b"\\ud83d\\ude00" in content
            response = await client.post(route, content=content, headers=JSON)
            assert response.status_code == 200
            assert rare in answer_text(response)


@pytest.mark.long_except("/v1/completions")
@pytest.mark.parametrize("route", ["/v1/completions", "/v3/chat/completions", "/completions"])
async def test_ten_megabytes(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R53, R54: within MAX_BODY_MB, and above it.
    words, letters = "word " * (2 * MEGABYTE), "x" * (10 * MEGABYTE)
    async with echo_client(serve, script) as client:
        long = await client.post(route, content=body(route, words), headers=JSON)
        assert " 4096 tokens" in check_error(route, long)
        unknown = await client.post(route, content=body(route, filler=letters), headers=JSON)
        assert unknown.status_code == 200
        stop = await client.post(route, content=body(route, stop=letters), headers=JSON)
        assert check_error(route, stop).startswith("stop must be ")
        model = await client.post(route, content=body(route, model=letters), headers=JSON)
        assert model.status_code == 404
        assert len(model.content) < 1000
    async with echo_client(serve, script, max_body_mb=9) as client:
        for each in [*ROUTES, *QUEUED]:
            refused = await client.post(each, content=body(each, letters), headers=JSON)
            assert check_error(each, refused, 413) == "the body is larger than 9 MB"


def user_messages(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number}"} for number in range(count)]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
async def test_largest_allowed_list_of_messages_is_checked_in_full(
    serve: Serve, script: ScriptFactory, family: str
) -> None:
    # R34, R54
    route = f"{family}/chat/completions"
    async with echo_client(serve, script) as client:
        content = body(
            route, messages=[*user_messages(MAX_MESSAGES - 1), {"role": "king", "content": "x"}]
        )
        wrong = await client.post(route, content=content, headers=JSON)
        assert check_error(route, wrong).startswith("messages[9999].role must be one of ")
        content = body(route, messages=user_messages(MAX_MESSAGES))
        long = await client.post(route, content=content, headers=JSON)
        assert " 4096 tokens" in check_error(route, long)


@pytest.mark.parametrize("family", FAMILIES)
async def test_more_messages_than_allowed_are_refused(
    serve: Serve, script: ScriptFactory, family: str
) -> None:
    route = f"{family}/chat/completions"
    async with echo_client(serve, script) as client:
        content = body(route, messages=user_messages(MAX_MESSAGES + 1))
        refused = await client.post(route, content=content, headers=JSON)
        assert check_error(route, refused) == "messages must have at most 10000 messages, got 10001"
        content = body(route, messages=user_messages(100_000))
        refused_early = await client.post(route, content=content, headers=JSON)
        assert check_error(route, refused_early) == (
            "the body has more than 250,000 JSON values (MAX_JSON_VALUES); every list element, "
            "object key, list and object counts"
        )


async def test_largest_allowed_list_of_messages_is_answered_when_it_fits_the_context(
    serve: Serve, script: ScriptFactory
) -> None:
    # R34
    route = "/v1/chat/completions"
    async with echo_client(serve, script, context_length=1_000_000) as client:
        content = body(route, messages=user_messages(MAX_MESSAGES), max_tokens=4)
        response = await client.post(route, content=content, headers=JSON)
        assert response.status_code == 200
        assert answer_text(response) == "user: 0\nuser: 1"
        assert response.json()["usage"]["prompt_tokens"] >= 2 * MAX_MESSAGES


@pytest.mark.parametrize("family", FAMILIES)
async def test_hundred_thousand_prompts(serve: Serve, script: ScriptFactory, family: str) -> None:
    # R5
    route = f"{family}/completions"
    async with echo_client(serve, script) as client:
        content = body(route, prompt=["x"] * 100_000)
        response = await client.post(route, content=content, headers=JSON)
        assert check_error(route, response) == "prompt must have at most 2048 prompts, got 100000"
        tokens = body(route, prompt=list(range(100_000)))
        long = await client.post(route, content=tokens, headers=JSON)
        assert " 4096 tokens" in check_error(route, long)


@pytest.mark.long_except("/v1/chat/completions-900", "/completions-100")
@pytest.mark.parametrize("levels", [100, READABLE_LEVELS])
@pytest.mark.parametrize("route", ROUTES)
async def test_deep_nesting_that_can_be_read(
    serve: Serve, script: ScriptFactory, route: str, levels: int
) -> None:
    # R53: refused in a known parameter, ignored in an unknown field.
    deep = b'{"a": ' * levels + b"{}" + b"}" * levels
    function = {"type": "function", "function": {"name": "f", "parameters": "DEEP"}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": "DEEP"}}
    wrong: dict[str, Any] = {
        "model": "DEEP",
        "max_tokens": "DEEP",
        "stop": ["DEEP"],
        "logit_bias": {"5": "DEEP"},
        "stream_options": "DEEP",
    }
    if "chat" in route:
        wrong["messages"] = [{"role": "user", "content": ["DEEP"]}]
    else:
        wrong["prompt"] = ["DEEP"]
    if levels == READABLE_LEVELS:
        wrong["response_format"] = schema
        wrong["validation"] = {"json_schema": "DEEP"}
        if "chat" in route:
            wrong |= {"tools": [function], "chat_template_kwargs": "DEEP"}
    async with echo_client(serve, script) as client:

        async def ask(**fields: Any) -> httpx2.Response:
            content = body(route, **fields).replace(b'"DEEP"', deep)
            return await client.post(route, content=content, headers=JSON)

        for name, value in wrong.items():
            message = check_error(route, await ask(**{name: value}))
            assert name in message, message
        assert (await ask(x="DEEP")).status_code == 200

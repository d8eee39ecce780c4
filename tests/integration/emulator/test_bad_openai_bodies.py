"""Bodies nobody sends by mistake: a clean refusal or a right answer, on every family of routes.

What single parameters may be is told by the tests of the parameters; here it is the whole body.
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
# By way of the queue.
QUEUED = [f"/v2/default/openai/v1{kind}completions" for kind in ("/", "/chat/")]
JSON = {"content-type": "application/json"}
MEGABYTE = 1_000_000
LEVELS = 100_000
# Of these orjson reads many, and writes 254.
MANY_LEVELS = 900


@asynccontextmanager
async def asking(
    serve: Serve, script: ScriptFactory, **settings: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server that says what it is asked; afterwards the next request is answered."""
    path = script(context_length=settings.pop("context_length", 4096))
    server = await serve(path, model_name=MODEL, rate_limit_chat="off", **settings)
    async with server.client() as client:
        yield client
        await server.wait_until_idle()
        for route in ROUTES:
            answer = await client.post(route, content=body(route, "all is well"), headers=JSON)
            assert answer.status_code == 200
            assert text(answer).count("all is well") == 1


def body(route: str, prompt: Any = "hi", **fields: Any) -> bytes:
    """Return a body that is right but for the fields."""
    asked: dict[str, Any] = {"prompt": prompt}
    if "chat" in route:
        asked = {"messages": [{"role": "user", "content": prompt}]}
    return json.dumps({"model": MODEL, **asked, **fields}).encode()


def text(answer: httpx2.Response) -> str:
    (choice,) = answer.json()["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def told(route: str, answer: httpx2.Response, status: int = 400) -> str:
    """Return the message of an error as the family tells errors; nothing else may be there."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    if route.startswith("/v"):
        assert {"message", "type", "param", "code"} <= set(error)
        assert error["type"] == "invalid_request_error"
        assert error["code"] in (status, "context_length_exceeded")
    else:
        assert isinstance(error["code"], str)
    message = error["message"]
    assert "Traceback" not in answer.text
    # It names what is wrong and does not say all of it back.
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
            answer = await client.post(route, content=content, headers=JSON)
            assert told(route, answer).startswith("the body is not JSON: "), name
        assert server.events.of(RequestStarted) == []
        answer = await client.post(route, content=body(route), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.long_except("/v1/chat/completions", "/v3/completions")
@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_numbers_that_are_too_large(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R8, R9, R53: the largest that JSON readers of ours take, and one more than is allowed.
    async with asking(serve, script) as client:
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
            answer = await client.post(route, content=body(route, **{name: value}), headers=JSON)
            assert told(route, answer).startswith(f"{name} must be "), (name, value)
        tiny = await client.post(route, content=body(route, temperature=1e-320), headers=JSON)
        assert tiny.status_code == 200


@pytest.mark.long_except("/v1/chat/completions", "/v3/completions")
@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_last_of_two_keys_counts(serve: Serve, script: ScriptFactory, route: str) -> None:
    # What JSON leaves open; readers agree on it.
    async with asking(serve, script) as client:
        twice = body(route, "first")[:-1] + b", " + body(route, "second")[1:]
        answer = await client.post(route, content=twice, headers=JSON)
        assert answer.status_code == 200
        assert "second" in text(answer)
        assert "first" not in text(answer)
        wrong = body(route)[:-1] + b', "n": 1, "n": "one"}'
        refused = await client.post(route, content=wrong, headers=JSON)
        assert told(route, refused).startswith("n must be ")


@pytest.mark.parametrize("route", [*ROUTES, *QUEUED])
async def test_characters_that_are_rare_and_legal(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    # A NUL and a pair of surrogates, escaped as JSON escapes them, are text like any other.
    rare = "a\0b \U0001f600 \ufffe \u2028 \x7f"
    async with asking(serve, script) as client:
        for stop in ("\0x", "\U0001f600x"):
            given = body(route, rare, stop=stop)
            assert b"\\u0000" in given
            assert b"\\ud83d\\ude00" in given
            answer = await client.post(route, content=given, headers=JSON)
            assert answer.status_code == 200
            assert rare in text(answer)


@pytest.mark.long_except("/v1/completions")
@pytest.mark.parametrize("route", ["/v1/completions", "/v3/chat/completions", "/completions"])
async def test_ten_megabytes(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R53, R54: within MAX_BODY_MB, and above it.
    words, letters = "word " * (2 * MEGABYTE), "x" * (10 * MEGABYTE)
    async with asking(serve, script) as client:
        long = await client.post(route, content=body(route, words), headers=JSON)
        assert " 4096 tokens" in told(route, long)
        unknown = await client.post(route, content=body(route, filler=letters), headers=JSON)
        assert unknown.status_code == 200
        stop = await client.post(route, content=body(route, stop=letters), headers=JSON)
        assert told(route, stop).startswith("stop must be ")
        model = await client.post(route, content=body(route, model=letters), headers=JSON)
        assert model.status_code == 404
        assert len(model.content) < 1000
    async with asking(serve, script, max_body_mb=9) as client:
        for each in [*ROUTES, *QUEUED]:
            refused = await client.post(each, content=body(each, letters), headers=JSON)
            assert told(each, refused, 413) == "the body is larger than 9 MB"


def turns(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number}"} for number in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
async def test_most_messages_are_each_checked_and_their_length_too(
    serve: Serve, script: ScriptFactory, family: str
) -> None:
    # R34, R54
    route = f"{family}/chat/completions"
    async with asking(serve, script) as client:
        content = body(route, messages=[*turns(MAX_MESSAGES - 1), {"role": "king", "content": "x"}])
        wrong = await client.post(route, content=content, headers=JSON)
        assert told(route, wrong).startswith("messages[9999].role must be one of ")
        content = body(route, messages=turns(MAX_MESSAGES))
        long = await client.post(route, content=content, headers=JSON)
        assert " 4096 tokens" in told(route, long)


@pytest.mark.parametrize("family", FAMILIES)
async def test_more_messages_than_allowed_are_refused(
    serve: Serve, script: ScriptFactory, family: str
) -> None:
    route = f"{family}/chat/completions"
    async with asking(serve, script) as client:
        content = body(route, messages=turns(MAX_MESSAGES + 1))
        many = await client.post(route, content=content, headers=JSON)
        assert told(route, many) == "messages must have at most 10000 messages, got 10001"
        content = body(route, messages=turns(100_000))
        more = await client.post(route, content=content, headers=JSON)
        assert told(route, more) == (
            "the body has more than 250,000 JSON values (MAX_JSON_VALUES); every list element, "
            "object key, list and object counts"
        )


async def test_most_messages_are_answered_when_they_fit_the_context(
    serve: Serve, script: ScriptFactory
) -> None:
    # R34
    route = "/v1/chat/completions"
    async with asking(serve, script, context_length=1_000_000) as client:
        content = body(route, messages=turns(MAX_MESSAGES), max_tokens=4)
        answer = await client.post(route, content=content, headers=JSON)
        assert answer.status_code == 200
        assert text(answer) == "user: 0\nuser: 1"
        assert answer.json()["usage"]["prompt_tokens"] >= 2 * MAX_MESSAGES


@pytest.mark.parametrize("family", FAMILIES)
async def test_hundred_thousand_prompts(serve: Serve, script: ScriptFactory, family: str) -> None:
    # R5
    route = f"{family}/completions"
    async with asking(serve, script) as client:
        given = body(route, prompt=["x"] * 100_000)
        answer = await client.post(route, content=given, headers=JSON)
        assert told(route, answer) == "prompt must have at most 2048 prompts, got 100000"
        tokens = body(route, prompt=list(range(100_000)))
        long = await client.post(route, content=tokens, headers=JSON)
        assert " 4096 tokens" in told(route, long)


@pytest.mark.long_except("/v1/chat/completions-900", "/completions-100")
@pytest.mark.parametrize("levels", [100, MANY_LEVELS])
@pytest.mark.parametrize("route", ROUTES)
async def test_deep_nesting_that_can_be_read(
    serve: Serve, script: ScriptFactory, route: str, levels: int
) -> None:
    # R53: refused where a parameter is none of it, left alone where nobody asks for it.
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
    if levels == MANY_LEVELS:
        wrong["response_format"] = schema
        wrong["validation"] = {"json_schema": "DEEP"}
        if "chat" in route:
            wrong |= {"tools": [function], "chat_template_kwargs": "DEEP"}
    async with asking(serve, script) as client:

        async def ask(**fields: Any) -> httpx2.Response:
            content = body(route, **fields).replace(b'"DEEP"', deep)
            return await client.post(route, content=content, headers=JSON)

        for name, value in wrong.items():
            message = told(route, await ask(**{name: value}))
            assert name in message, message
        assert (await ask(x="DEEP")).status_code == 200

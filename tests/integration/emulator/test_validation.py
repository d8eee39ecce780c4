"""Validation over HTTP: requests are blocked; answers are redacted, checked and regenerated."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.hooks import RequestStarted
from tests.conftest import SMALL_RULES, ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.serving import RawConnection, Server, join_text, parse_chunks
from tests.usage import usage

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ROUTES = [TEXT, CHAT]
BLOCKED_PROMPT = "Draw up an Attack Plan!"
BLOCKED_MESSAGE = "The request contains a word or phrase that is not allowed here."
NO_USAGE = usage(0, 0)
# Personal data that is split over several tokens.
PIECES: list[Any] = [
    "Write to bob@exam",
    {"text": "ple.com or pay by 4111 1111", "delay_ms": 5},
    {"text": " 1111 1111", "delay_ms": 5},
    " now",
]
RULES: dict[str, Any] = {"validation_rules": SMALL_RULES}
REDACTED = "Write to [email] or pay by [card] now"


def body(route: str, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": prompt}]
    return ({"messages": turns} if route == CHAT else {"prompt": prompt}) | fields


async def post(server: Server, route: str, content: dict[str, Any]) -> httpx2.Response:
    async with server.client() as client:
        return await client.post(route, json=content)


async def run_job(server: Server, **job_input: Any) -> dict[str, Any]:
    """Run a job, check that it completed, and return its output."""
    job = (await post(server, "/runsync", {"input": job_input})).json()
    assert job["status"] == "COMPLETED", job
    output: dict[str, Any] = job["output"]
    return output


def answer_text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
async def test_blocked_call_is_answered_with_content_filter(serve: Serve, route: str) -> None:
    # R3, R56
    server = await serve(blocked_terms="attack plan", **RULES)
    response = await post(server, route, body(route, BLOCKED_PROMPT))
    assert response.status_code == 200
    answer = response.json()
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert answer_text(answer) == ""
    assert answer["usage"] == NO_USAGE
    assert answer["blocked"] is True
    (ChatCompletion if route == CHAT else Completion).model_validate(answer, strict=True)


@pytest.mark.parametrize("route", ROUTES)
async def test_blocked_stream_ends_with_content_filter(serve: Serve, route: str) -> None:
    # R19-R22, R36, R56
    server = await serve(blocked_terms="attack plan", **RULES)
    response = await post(server, route, body(route, BLOCKED_PROMPT, stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *earlier, last = parse_chunks(response.content)
    assert len(earlier) == (1 if route == CHAT else 0)
    assert join_text([*earlier, last]) == ""
    assert last["choices"][0]["finish_reason"] == "content_filter"
    assert last["usage"] == NO_USAGE
    assert last["blocked"] is True
    if route == CHAT:
        assert earlier[0]["choices"][0]["delta"]["role"] == "assistant"
        for chunk in (*earlier, last):
            ChatCompletionChunk.model_validate(chunk, strict=True)


@pytest.mark.parametrize("route", ROUTES)
async def test_blocked_stream_sends_its_usage_in_a_separate_chunk_when_requested(
    serve: Serve, route: str
) -> None:
    # R22
    server = await serve(blocked_terms="attack plan", **RULES)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *others, last = parse_chunks(
        (await post(server, route, body(route, BLOCKED_PROMPT, **options))).content
    )
    assert (last["choices"], last["usage"]) == ([], NO_USAGE)
    assert others[-1]["choices"][0]["finish_reason"] == "content_filter"


async def test_blocked_intent_is_content_filter(serve: Serve) -> None:
    # R56
    server = await serve(blocked_intents="weather", **RULES)
    for route in ROUTES:
        answer = (await post(server, route, body(route, "The weather for tomorrow?"))).json()
        assert answer["choices"][0]["finish_reason"] == "content_filter"


async def test_blocked_call_includes_the_verdict_when_validation_is_enabled(serve: Serve) -> None:
    server = await serve(blocked_terms="attack plan", **RULES)
    for route in ROUTES:
        request = body(route, BLOCKED_PROMPT, enable_validation=True)
        complete = (await post(server, route, request)).json()
        last = parse_chunks((await post(server, route, request | {"stream": True})).content)[-1]
        for answer in (complete, last):
            assert answer["validation"]["issues"] == [BLOCKED_MESSAGE]
            assert answer["validation"]["valid"] is False


async def test_blocked_terms_may_come_from_the_request(serve: Serve) -> None:
    server = await serve(**RULES)
    request = body(CHAT, "Spiders?", validation={"blocked_terms": ["spiders"]})
    answer = (await post(server, CHAT, request)).json()
    assert answer["choices"][0]["finish_reason"] == "content_filter"


async def test_blocked_call_does_not_reach_the_engine(serve: Serve, script: ScriptFactory) -> None:
    hang = script({"pieces": ["a", {"hang_s": 3600}]}, slots=1)
    server = await serve(hang, blocked_terms="attack plan", **RULES)
    with await RawConnection.connect(server.port) as wire:
        # The only slot is taken.
        await wire.post(TEXT, body(TEXT, stream=True))
        await server.events.wait(RequestStarted)
        for route in ROUTES:
            response = await post(server, route, body(route, BLOCKED_PROMPT))
            assert response.json()["blocked"] is True
        assert len(server.events.of(RequestStarted)) == 1


async def test_blocked_call_does_not_wait_for_the_model(serve: Serve, gate: Gate) -> None:
    server = await serve(gate.path, blocked_terms="attack plan", **RULES)
    for route in ROUTES:
        assert (await post(server, route, body(route, BLOCKED_PROMPT))).json()["blocked"] is True
    await gate.open()


async def test_blocked_job(serve: Serve) -> None:
    # R45, R47
    server = await serve(blocked_terms="attack plan", **RULES)
    output = await run_job(server, prompt=BLOCKED_PROMPT, enable_validation=False)
    assert output["blocked"] is True
    assert output["usage"] == {"input": 0, "output": 0, "total": 0}
    assert "validation" not in output
    assert server.events.of(RequestStarted) == []


async def test_token_ids_are_refused_when_terms_are_blocked(serve: Serve) -> None:
    # R53
    server = await serve(blocked_terms="attack plan", **RULES)
    for stream in (False, True):
        response = await post(server, TEXT, {"prompt": [1, 2, 3], "stream": stream})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error.pop("request_id") == response.headers["x-request-id"]
        assert error == {
            "message": "prompt must be text where intents or terms are blocked, got token ids",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": 400,
        }


@pytest.mark.parametrize("settings", [{}, {"blocked_terms": "bomb", "blocked_intents": "weather"}])
@pytest.mark.parametrize("route", ROUTES)
async def test_content_filter_is_sent_only_for_blocked_requests(
    serve: Serve, route: str, settings: dict[str, Any]
) -> None:
    # R56
    server = await serve(**RULES, **settings)
    for fields in ({}, {"max_tokens": 1}, {"stop": "plan"}, {"enable_validation": True}):
        for stream in (False, True):
            response = await post(
                server, route, body(route, BLOCKED_PROMPT, stream=stream, **fields)
            )
            assert response.status_code == 200
            assert b"content_filter" not in response.content
            assert b"blocked" not in response.content


# -- redacted -------------------------------------------------------------------------------------


def without_numbers_of_the_server(content: str) -> str:
    """Return JSON without ids and times, whose digits may be those of the card by chance."""
    return re.sub(r'"(?:id|created|[a-z_]*_ms)": ?(?:"[^"]*"|[0-9.]+)', "", content)


@pytest.mark.parametrize("route", ROUTES)
async def test_stream_has_no_personal_data(serve: Serve, script: ScriptFactory, route: str) -> None:
    # R24
    server = await serve(script({"pieces": PIECES}), redact_pii="on", **RULES)
    stream = (await post(server, route, body(route, stream=True))).content
    complete = await post(server, route, body(route))
    chunks = parse_chunks(stream)
    assert join_text(chunks) == answer_text(complete.json()) == REDACTED
    assert chunks[-1]["redacted"] == complete.json()["redacted"] == {"email": 1, "card": 1}
    for content in (stream, complete.content):
        text = without_numbers_of_the_server(content.decode())
        assert not [datum for datum in ("bob", "@exam", "ple.com", "1111") if datum in text]


async def test_job_output_has_no_personal_data(serve: Serve, script: ScriptFactory) -> None:
    # R46
    server = await serve(script({"pieces": PIECES}), redact_pii="on", **RULES)
    for stream in (False, True):
        output = await run_job(server, prompt="hi", stream=stream)
        choice = output["choices"][0]
        assert choice["text"] == "".join(choice["tokens"]) == REDACTED
        assert output["redacted"] == {"email": 1, "card": 1}
        text = without_numbers_of_the_server(json.dumps(output))
        assert not [datum for datum in ("bob", "@exam", "1111") if datum in text]


# -- checked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
async def test_call_returns_the_verdict_when_validation_is_enabled(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    # R45, R47
    server = await serve(script({"pieces": ["Assistant:", " Sunny."]}), **RULES)
    request = body(route, "The weather for tomorrow?", enable_validation=True)
    answer = (await post(server, route, request)).json()
    assert answer_text(answer) == "Sunny."
    assert answer["validation"] == {
        "valid": True,
        "issues": [],
        "sanitized": True,
        "intent": "weather",
        "details": {
            "issues": [],
            "notices": [],
            "removed": [{"rule": "role_label", "span": [0, 11]}],
            "removed_count": 1,
        },
    }
    (ChatCompletion if route == CHAT else Completion).model_validate(answer, strict=True)


@pytest.mark.parametrize("route", ROUTES)
async def test_stream_returns_the_verdict_in_its_last_chunk_when_validation_is_enabled(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    # R21, R24, R47: the model's own text has been sent, so the verdict marks it as not clean.
    server = await serve(script({"pieces": ["Assistant:", " Sunny."]}), **RULES)
    request = body(route, enable_validation=True, stream=True)
    *others, last = parse_chunks((await post(server, route, request)).content)
    assert join_text(others) == "Assistant: Sunny."
    assert last["validation"]["sanitized"] is True
    assert not any("validation" in chunk for chunk in others)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("fields", [{}, {"enable_validation": False}, {"enable_validation": None}])
async def test_call_returns_the_unchanged_text_when_validation_is_not_enabled(
    serve: Serve, script: ScriptFactory, route: str, fields: dict[str, Any]
) -> None:
    server = await serve(script({"pieces": ["Assistant: Sunny."]}), **RULES)
    answer = (await post(server, route, body(route, **fields))).json()
    assert answer_text(answer) == "Assistant: Sunny."
    assert "validation" not in answer


async def test_answer_is_checked_against_the_requested_schema(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ['{"town": ', '"Paris"}']}), **RULES)
    schema = {"type": "object", "required": ["city"]}
    request = body(CHAT, enable_validation=True, validation={"json_schema": schema})
    verdict = (await post(server, CHAT, request)).json()["validation"]
    assert verdict["valid"] is False
    assert [issue["rule"] for issue in verdict["details"]["issues"]] == ["schema_mismatch"]


BAD_FIELDS = [
    ({"enable_validation": "yes"}, "enable_validation", "must be true or false, got"),
    ({"validation": 5}, "validation", "must be an object, got 5"),
    ({"validation": {"redact_pii": "on"}}, "validation.redact_pii", "must be true, false or an a"),
    ({"validation": {"language": "xx"}}, "validation.language", ": There is no language 'xx'"),
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "message"), BAD_FIELDS)
async def test_wrong_option_is_400(
    serve: Serve,
    route: str,
    stream: bool,
    fields: dict[str, Any],
    param: str,
    message: str,
) -> None:
    # R53
    server = await serve(**RULES)
    response = await post(server, route, body(route, stream=stream, **fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, 400)
    assert error["message"].startswith(param)
    assert message in error["message"]


async def test_wrong_option_fails_the_job(serve: Serve) -> None:
    # R50
    server = await serve(**RULES)
    request = {"input": {"prompt": "x", "validation": {"redact_pii": "on"}}}
    job = (await post(server, "/runsync", request)).json()
    assert job["status"] == "FAILED"
    assert job["error"] == (
        "input.validation.redact_pii must be true, false or an array of card, iban, email, "
        'phone, key, ssn, got "on"'
    )


# -- regenerated ----------------------------------------------------------------------------------


async def test_empty_answer_is_regenerated(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": []}), regenerate=True, **RULES)
    output = await run_job(server, prompt="hi")
    assert output["regenerated"] == {
        "discarded_issues": ["The answer is empty."],
        "discarded_usage": {"input": 1, "output": 0},
    }
    assert len(server.events.of(RequestStarted)) == 2


async def test_live_stream_is_not_regenerated(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": []}), regenerate=True, **RULES)
    request = body(TEXT, enable_validation=True, stream=True)
    (last,) = parse_chunks((await post(server, TEXT, request)).content)
    assert last["validation"]["issues"] == ["The answer is empty."]
    assert "regenerated" not in last
    assert len(server.events.of(RequestStarted)) == 1


async def test_other_requests_are_answered_while_an_answer_is_validated(
    serve: Serve, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def find_issues_slowly(check: object, text: str) -> tuple[()]:
        # The check runs in a thread, so the event loop can answer other requests.
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(20)
        return ()

    monkeypatch.setattr("validation.options.language.LanguageCheck.find_issues", find_issues_slowly)
    server = await serve(script({"pieces": ["word "]}), **RULES)
    request = body(TEXT, enable_validation=True, validation={"language": "en"})
    slow = asyncio.create_task(post(server, TEXT, request))
    async with asyncio.timeout(40):
        await began.wait()
        assert (await post(server, TEXT, body(TEXT))).status_code == 200
        assert not slow.done()
        may_end.set()
        assert (await slow).json()["validation"]["valid"] is True

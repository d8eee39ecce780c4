"""Calls that name their route: the answer in a job is that of the service."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from contextlib import suppress
from typing import Any

import pytest

from common.json_object import JsonObject
from engine import Priority, Usage
from engine.errors import EngineError
from handler.apis.calls import CALL_ROUTES, ApiCalls, build_calls, find_format, read_usage
from handler.apis.core.api import CallContext
from handler.apis.messages.api import MESSAGES
from handler.apis.openai.service import OpenAIService
from handler.apis.responses.api import RESPONSES
from handler.errors import InvalidRequest, NotFound, error_info
from handler.models.registry import ModelRegistry
from tests.unit.handler.conftest import JobHandlerFactory, PipelineFactory
from tests.unit.handler.input.images import png

HELLO = {"pieces": ["He", "llo"]}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi"},
    MESSAGES: {
        "model": "claude-any",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"prompt": "hi"},
}


@pytest.fixture
def calls(pipeline_of: PipelineFactory) -> ApiCalls:
    models = ModelRegistry(pipeline_of(HELLO))
    return build_calls(OpenAIService(models), models)


def text_of(route: str, body: JsonObject) -> str:
    match route:
        case "/v1/responses":
            return str(body["output"][0]["content"][0]["text"])
        case "/v1/messages":
            return str(body["content"][0]["text"])
        case "/api/chat":
            return str(body["message"]["content"])
        case "/api/generate":
            return str(body["response"])
        case "/v1/completions":
            return str(body["choices"][0]["text"])
        case _:
            return str(body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("route", BODIES)
async def test_answer_has_the_shape_of_its_api(calls: ApiCalls, route: str) -> None:
    answer = await calls.answer(route, BODIES[route], CallContext(priority=Priority.BATCH))
    assert text_of(route, answer) == "Hello"


@pytest.mark.parametrize("route", BODIES)
async def test_job_is_answered_by_each_route(job_handler_of: JobHandlerFactory, route: str) -> None:
    jobs = job_handler_of(HELLO)
    job = {"id": "j", "input": {"openai_route": route, "openai_input": BODIES[route]}}
    jobs.check(job)
    assert text_of(route, await jobs.run(job)) == "Hello"


@pytest.mark.parametrize(
    ("route", "last"), [(RESPONSES, "response.completed"), (MESSAGES, "message_stop")]
)
async def test_streamed_job_has_the_events_of_its_api(
    job_handler_of: JobHandlerFactory, route: str, last: str
) -> None:
    jobs = job_handler_of(HELLO)
    body = BODIES[route] | {"stream": True}
    chunks = [
        chunk
        async for chunk in jobs.stream(
            {"id": "j", "input": {"openai_route": route, "openai_input": body}}
        )
    ]
    events = [
        json.loads(line.removeprefix("data: "))
        for line in "".join(chunks).splitlines()
        if line.startswith("data: {")
    ]
    assert events[-1]["type"] == last
    assert (
        "".join(
            event["delta"] if isinstance(event["delta"], str) else event["delta"].get("text", "")
            for event in events
            if event["type"].endswith("delta")
        )
        == "Hello"
    )


@pytest.mark.parametrize("route", BODIES)
async def test_warnings_of_the_job_are_in_the_answer(calls: ApiCalls, route: str) -> None:
    context = CallContext(warnings=("look here",), timeout_s=7.0)
    answer = await calls.answer(route, BODIES[route], context)
    if route != MESSAGES:
        assert answer["warnings"] == ["look here"]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (RESPONSES, {"input": 3}, "input"),
        (RESPONSES, {"input": "hi", "max_output_tokens": "x"}, "max_output_tokens"),
        (RESPONSES, {"input": "hi", "previous_response_id": 3}, "previous_response_id"),
        (MESSAGES, {"messages": []}, None),
        ("/v1/embeddings", {}, "input"),
        ("/v1/rerank", {}, "query"),
        ("/v1/score", {}, "text_1"),
        ("/v1/completions", {}, "prompt"),
    ],
)
async def test_wrong_call_is_refused_before_and_while_it_runs(
    calls: ApiCalls, route: str, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as checked:
        calls.check(route, body)
    with pytest.raises(InvalidRequest) as answered:
        await calls.answer(route, body, CallContext())
    assert checked.value.message == answered.value.message
    if param is not None:
        assert checked.value.param == answered.value.param == param


@pytest.mark.parametrize("route", BODIES)
async def test_usage_is_read_from_the_answer_of_each_api(calls: ApiCalls, route: str) -> None:
    usage = read_usage(await calls.answer(route, BODIES[route], CallContext()))
    assert (usage.completion_tokens, usage.cached_tokens) == (2, 0)
    assert usage.prompt_tokens > 0


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4},
    ],
)
def test_cached_tokens_are_part_of_the_prompt_in_each_form(usage: dict[str, Any]) -> None:
    assert read_usage({"usage": usage}) == Usage(9, 2, 4)


async def test_unknown_route_is_refused_with_the_list_of_routes(calls: ApiCalls) -> None:
    with pytest.raises(NotFound) as raised:
        await calls.answer("/v1/nothing", {}, CallContext())
    assert all(route in raised.value.message for route in CALL_ROUTES)


def test_error_has_the_form_of_its_api() -> None:
    failure = error_info(InvalidRequest("no", "input"))
    assert find_format(MESSAGES).encode_error(failure)["type"] == "error"
    assert find_format(RESPONSES).encode_error(failure)["error"]["param"] == "input"
    assert find_format("/api/chat").encode_error(failure) == {"error": "no"}


IMAGE = base64.b64encode(png(300, 300) + bytes(60_000)).decode()
DATA_URL = f"data:image/png;base64,{IMAGE}"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (
            "/v1/chat/completions",
            {"content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]},
        ),
        (
            RESPONSES,
            {"content": [{"type": "input_image", "image_url": DATA_URL}]},
        ),
        (
            MESSAGES,
            {
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": IMAGE},
                    }
                ]
            },
        ),
        ("/api/chat", {"content": "", "images": [IMAGE]}),
    ],
)
async def test_large_image_is_decoded_once_and_not_on_the_event_loop(
    calls: ApiCalls, monkeypatch: pytest.MonkeyPatch, route: str, body: dict[str, Any]
) -> None:
    threads: list[str] = []
    decode = binascii.a2b_base64

    def record(data: str, **options: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return decode(data, **options)

    monkeypatch.setattr(binascii, "a2b_base64", record)
    key = "input" if route == RESPONSES else "messages"
    with suppress(EngineError, InvalidRequest):  # the scripted engine reads no images
        await calls.answer(route, BODIES[route] | {key: [{"role": "user", **body}]}, CallContext())
    assert len(threads) == 1
    assert threads[0].startswith("validate")

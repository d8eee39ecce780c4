"""Errors name the client's own field, in every API and from every check."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import EngineError
from handler.apis.calls import ApiCalls, build_calls
from handler.apis.core.api import CallContext
from handler.apis.openai.service import OpenAIService
from handler.errors import HandlerError, error_info
from handler.models.registry import ModelRegistry
from tests.unit.handler.conftest import PipelineFactory

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": 3}
BROKEN = "iVBORw0KGgo=="
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
CHAT, GENERATE = "/api/chat", "/api/generate"

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"stop": [1]}, "stop"),
    (MESSAGES, {"stop_sequences": [1]}, "stop_sequences"),
    (CHAT, {"options": {"stop": [1]}}, "options.stop"),
    (CHAT, {"options": {"num_predict": "x"}}, "options.num_predict"),
    (CHAT, {"options": {"repeat_penalty": "x"}}, "options.repeat_penalty"),
    (GENERATE, {"options": {"temperature": "x"}}, "options.temperature"),
    (MESSAGES, {"temperature": 3}, "temperature"),
    (RESPONSES, {"max_output_tokens": "x"}, "max_output_tokens"),
    (RESPONSES, {"reasoning": {"effort": "x"}}, "reasoning.effort"),
    # Schemas, which the engine may be the first to refuse.
    (CHAT, {"format": {"type": 3}}, "format"),
    (GENERATE, {"format": {"type": 3}}, "format"),
    (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
        "output_config.format",
    ),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 3}}}},
        "text.format",
    ),
    # Tools: the first ones are skipped, so that the numbers differ.
    (CHAT, {"tools": [{"type": "function", "function": FUNCTION}]}, "tools[0].function.parameters"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
    (
        RESPONSES,
        {"tools": [{"type": "web_search"}, {"type": "function", **FUNCTION}]},
        "tools[1].parameters",
    ),
    # Empty values of a wrong type do not count as missing.
    (CHAT, {"messages": ""}, "messages"),
    (CHAT, {"tools": {}}, "tools"),
    (CHAT, {"messages": [USER | {"images": ""}]}, "messages[0].images"),
    (GENERATE, {"images": ""}, "images"),
    # Images.
    (CHAT, {"messages": [USER | {"images": ["/9j/", BROKEN]}]}, "messages[0].images[0]"),
    (GENERATE, {"images": [BROKEN]}, "images[0]"),
    (
        MESSAGES,
        {
            "messages": [
                USER
                | {
                    "content": [
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": BROKEN},
                        }
                    ]
                }
            ]
        },
        "messages[0].content[0].source",
    ),
    (
        RESPONSES,
        {"input": [USER | {"content": [{"type": "input_image", "image_url": BROKEN}]}]},
        "input[0].content[0].image_url",
    ),
    # Messages: the instructions come first in the chat.
    (
        RESPONSES,
        {"instructions": "be brief", "input": [{"role": "user", "content": 3}]},
        "input[0].content",
    ),
    (CHAT, {"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
]
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    MESSAGES: {"messages": [USER], "max_tokens": 9},
    RESPONSES: {"input": "hi"},
    CHAT: {"messages": [USER]},
    GENERATE: {"prompt": "hi"},
}


@pytest.fixture
def calls(pipeline_of: PipelineFactory) -> ApiCalls:
    models = ModelRegistry(pipeline_of({"pieces": ["ok"]}))
    return build_calls(OpenAIService(models), models)


@pytest.mark.parametrize(("route", "body", "param"), CASES)
async def test_error_names_the_field_of_the_client(
    calls: ApiCalls, route: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises((HandlerError, EngineError)) as caught:
        await calls.answer(route, MINIMAL[route] | body, CallContext())
    failure = error_info(caught.value)
    assert failure.mapping.status == 400
    # Some errors name only the field; the place in it is in their message.
    assert failure.param is not None
    assert param.startswith(failure.param), failure
    assert failure.message.startswith(param), failure
    if param.endswith("format"):
        # Whether the engine checks the schema is decided only when the call runs.
        return
    with pytest.raises((HandlerError, EngineError)) as checked:
        calls.check(route, MINIMAL[route] | body)
    assert error_info(checked.value).message == failure.message


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (MESSAGES, {"messages": [USER | {"content": "word " * 9000}]}, "prompt"),
        (RESPONSES, {"input": "word " * 9000}, "input"),
        (CHAT, {"messages": [USER | {"content": "word " * 9000}]}, "messages"),
        (GENERATE, {"prompt": "word " * 9000}, "prompt"),
        (GENERATE, {"prompt": "word " * 9000, "raw": True}, "prompt"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_errors_of_the_engine_name_the_field_of_the_client(
    calls: ApiCalls, route: str, body: dict[str, Any], param: str, is_streamed: bool
) -> None:
    body = MINIMAL[route] | body | {"stream": is_streamed}
    with pytest.raises((HandlerError, EngineError)) as caught:
        async for _ in calls.run(route, body, CallContext()):
            pass
    failure = error_info(caught.value)
    assert failure.mapping.status == 400
    assert failure.message.startswith(param), failure

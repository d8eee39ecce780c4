"""The codes of errors that clients of OpenAI compare, on every surface (R64, R73)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engine.errors import EngineError, PromptTooLong, QueueFull
from handler.apis.openai.service import OpenAIService
from handler.errors import ErrorInfo, error_info
from handler.job.job_handler import JobHandler
from tests.unit.handler.conftest import PipelineFactory

LONG = " ".join(["word"] * 200)
CHAT = {"messages": [{"role": "user", "content": LONG}]}
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT, "messages"),
    ("/v1/chat/completions", CHAT | {"n": 2}, "messages"),
    ("/v1/completions", {"prompt": LONG}, "prompt"),
]


def overflow(param: str) -> dict[str, Any]:
    # The names of the roles are words of the scripted chat.
    tokens = 202 if param == "messages" else 200
    return {
        "message": "This model's maximum context length is 64 tokens. However, your "
        f"{param} resulted in {tokens} tokens. Please reduce the length of the {param}. "
        "(context_length_exceeded)",
        "type": "invalid_request_error",
        "param": param,
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize(("route", "body", "param"), CALLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_that_is_too_long_has_the_code_of_openai(
    route: str, body: dict[str, Any], param: str, stream: bool, pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(pipeline_of(context_length=64))
    call = service.parse_call(route, body | {"stream": stream})
    with pytest.raises(EngineError) as raised:
        await (service.open_stream(call) if stream else service.complete(call))
    failure = error_info(raised.value)
    assert failure.openai_error() == {"error": overflow(param)}
    assert failure.named_error()["error"]["code"] == "context_length_exceeded"
    # Only OpenAI's clients need OpenAI's words.
    assert failure.job_error().startswith(f"{param}: 20")
    assert failure.job_error().endswith(" tokens do not fit the context of 64 tokens")


async def test_job_with_a_route_has_the_code_in_its_error(pipeline_of: PipelineFactory) -> None:
    handler = JobHandler(pipeline_of(context_length=64))
    for route, body, param in CALLS:
        job = {"id": "j", "input": {"openai_route": route, "openai_input": body}}
        output = await handler.run(job)
        assert orjson.loads(output["error"])["error"] == overflow(param)
    job = {"id": "j", "input": {"openai_route": "/v1/chat/completions", "openai_input": CHAT}}
    job["input"]["openai_input"] = CHAT | {"model": "gpt-5"}  # type: ignore[index]
    assert orjson.loads((await handler.run(job))["error"])["error"]["code"] == "model_not_found"


async def test_job_of_text_keeps_its_sentence(pipeline_of: PipelineFactory) -> None:
    output = await JobHandler(pipeline_of(context_length=64)).run({"input": {"prompt": LONG}})
    assert output == {"error": "prompt: 200 tokens do not fit the context of 64 tokens"}


def test_full_queue_has_the_code_of_a_rate_limit() -> None:
    failure = error_info(QueueFull("full", retry_after_s=1))
    assert failure.openai_error()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("input: 70 tokens do not fit", "70"),
        ("input: 900 characters, at least 70 tokens do not fit", "at least 70"),
        ("input: more than 70 tokens do not fit", "at least 70"),
    ],
)
def test_size_of_a_partly_counted_prompt_is_a_minimum(message: str, size: str) -> None:
    error = PromptTooLong(message, prompt_tokens=70, context_length=64, param="input")
    failure: ErrorInfo = error_info(error)
    assert f"your input resulted in {size} tokens." in failure.openai_error()["error"]["message"]

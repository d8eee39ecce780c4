"""The differences between the families of routes, and their equality elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.completions import COMPLETIONS as SHAPE
from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.apis.openai.service import OpenAIService
from tests.unit.handler.apis.openai.calls import CHAT, COMPLETIONS, complete, complete_streamed
from tests.unit.handler.conftest import PipelineFactory
from tests.usage import usage

BODIES: list[Any] = [
    pytest.param(COMPLETIONS, {"prompt": "hi"}, id="completions"),
    pytest.param(CHAT, {"messages": [{"role": "user", "content": "hi"}]}, id="chat"),
]
DIALECTS = pytest.mark.parametrize("dialect", [OPENAI, ORACLE, OVMS], ids=lambda each: each.name)
MODEL = {"model": "scripted"}


@DIALECTS
@pytest.mark.parametrize(("route", "body"), BODIES)
async def test_usage_of_a_stream(
    pipeline_of: PipelineFactory, route: str, body: dict[str, Any], dialect: Dialect
) -> None:
    # R22
    service = OpenAIService(pipeline_of({"pieces": ["a", " b"]}))
    full = await complete(service, route, body | MODEL, dialect)
    assert full.usage is not None
    for options, expected in (
        (None, full.usage if dialect is OPENAI else None),
        ({}, None),
        ({"include_usage": False}, None),
        ({"include_usage": True}, full.usage),
    ):
        request_body = {**body, **MODEL, "stream_options": options}
        streamed = await complete_streamed(service, route, request_body, dialect)
        assert streamed.choices == full.choices
        assert streamed.usage == expected
        includes_usage = options == {"include_usage": True}
        assert [not chunk["choices"] for chunk in streamed.sent] == [
            *([False] * (len(streamed.sent) - 1)),
            includes_usage,
        ]
        assert {"usage" in chunk for chunk in streamed.sent[:-1]} == {includes_usage}


@DIALECTS
@pytest.mark.parametrize("n", [1, 2])
async def test_role_of_a_stream(pipeline_of: PipelineFactory, dialect: Dialect, n: int) -> None:
    # R36
    pieces = [{"text": text, "delay_ms": 20} for text in ("a", "b", "c")]
    service = OpenAIService(pipeline_of({"pieces": pieces}))
    body = {"messages": [{"role": "user", "content": "hi"}], "n": n}
    # An n of its own would need a best_of, which chats have not.
    response = await complete_streamed(service, CHAT, body | MODEL, dialect)
    role = {"role": "assistant"} if dialect is ORACLE else {}
    for index in range(n):
        choices = [each for chunk in response.sent for each in chunk["choices"]]
        deltas = [choice["delta"] for choice in choices if choice["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert [delta.keys() - {"content"} for delta in deltas[1:-1]] == [role.keys()] * (
            len(deltas) - 2
        )
        assert deltas[-1] == {}


@DIALECTS
@pytest.mark.parametrize(("route", "body"), BODIES)
@pytest.mark.parametrize("include", [None, True, False])
async def test_stop_string(
    pipeline_of: PipelineFactory,
    route: str,
    body: dict[str, Any],
    dialect: Dialect,
    include: bool | None,
) -> None:
    # R12, R25
    service = OpenAIService(pipeline_of({"pieces": ["one fi", "ve", " six"]}))
    request_body = {**body, **MODEL, "stop": "five", "include_stop_str_in_output": include}
    full = await complete(service, route, request_body, dialect)
    assert full.choices[0].text == ("one five" if include else "one ")
    if dialect is OVMS and include is False:
        return
    streamed = await complete_streamed(service, route, request_body, dialect)
    assert streamed.choices[0].text == ("one five" if include or dialect is OVMS else "one ")
    for choice in (full.choices[0], streamed.choices[0]):
        assert (choice.finish_reason, choice.stop_reason) == ("stop", "five")


def limit(dialect: Dialect, default: int | None = None, **body: Any) -> int | None:
    call = OpenAICall(
        SHAPE,
        {"prompt": "hi"} | MODEL | body,
        "scripted",
        CallDefaults(max_tokens=default),
        dialect=dialect,
    )
    return call.parameters.sampling.max_tokens


def test_max_tokens_with_ignore_eos() -> None:
    # R8, R10
    for dialect in (OPENAI, ORACLE):
        assert limit(dialect, ignore_eos=True) is None
        assert limit(dialect, ignore_eos=True, max_tokens=9000) == 9000
        assert limit(dialect, 9000, ignore_eos=True) == 9000
    assert limit(OVMS, ignore_eos=True) == 4000
    assert limit(OVMS, ignore_eos=True, max_tokens=4000) == 4000
    assert limit(OVMS, ignore_eos=True, max_tokens=5) == 5
    assert limit(OVMS, ignore_eos=True, max_tokens=0, echo=True) == 0
    assert limit(OVMS, ignore_eos=True, max_tokens=9000, max_completion_tokens=5) == 5
    # A default above the limit is reduced without an error.
    assert limit(OVMS, 9000, ignore_eos=True) == 4000
    assert limit(OVMS, 150, ignore_eos=True) == 150
    assert limit(OVMS, ignore_eos=False, max_tokens=9000) == 9000
    assert limit(OVMS) is None


@DIALECTS
async def test_logprobs_with_several_choices(
    pipeline_of: PipelineFactory, dialect: Dialect
) -> None:
    # R13, R15: values that all dialects allow have the same effect in all.
    service = OpenAIService(pipeline_of({"pieces": ["a", " b"]}))
    body = {"prompt": ["x", "y"], "logprobs": 1, "n": 2, "best_of": 3, "echo": True}
    response = await complete(service, COMPLETIONS, body | MODEL, dialect)
    assert [choice.text for choice in response.choices.values()] == ["xa b", "xa b", "ya b", "ya b"]
    assert response.usage == usage(2, 12)
    for choice in response.choices.values():
        assert choice.logprobs is not None
        assert choice.logprobs["token_logprobs"] == [None, -1.0, -1.0]
        assert choice.logprobs["text_offset"] == [0, 1, 2]

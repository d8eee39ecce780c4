"""Logprobs in the shapes of both routes (R13)."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Delta, Finish, FinishReason, PromptToken, TokenLogprob, Usage
from engine.reply.reply import Reply
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.echo import Echo
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.logprobs import (
    encode_chat_logprobs,
    encode_completion_logprobs,
    logprobs_within,
)
from handler.apis.openai.service import OpenAIService
from handler.apis.openai.wire_format import DONE
from handler.delivery.limits import BLOCK_BYTES
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai import calls, reading
from tests.unit.handler.conftest import PipelineFactory

TOP = (("a", -0.1), ("b", -1.0), ("c", -2.0), ("d", -3.0))
BODIES = [
    pytest.param(COMPLETIONS, {"prompt": "hi", "logprobs": 2}, id="completions"),
    pytest.param(
        CHAT,
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2},
        id="chat",
    ),
]


def likely(token: str, logprob: float, offset: int = 0, raw: bytes | None = None) -> TokenLogprob:
    return TokenLogprob(token, logprob, TOP, token.encode() if raw is None else raw, offset)


@pytest.mark.parametrize(
    ("alternatives", "tops"),
    [
        (0, {"b": -1.0}),
        (1, {"a": -0.1, "b": -1.0}),
        (2, {"a": -0.1, "b": -1.0}),
        (4, dict(TOP)),
        (5, dict(TOP)),
    ],
)
def test_completion_logprobs_include_the_sampled_token(
    alternatives: int, tops: dict[str, float]
) -> None:
    encoded = encode_completion_logprobs([likely("b", -1.0)], alternatives, 0)
    assert encoded["top_logprobs"] == [tops]


def test_completion_logprobs_keep_the_likelier_of_equal_texts() -> None:
    top = (("\ufffd", -0.5), ("\ufffd", -1.5), ("a", -2.0))
    encoded = encode_completion_logprobs([TokenLogprob("\ufffd", -1.5, top)], 3, 0)
    assert encoded["top_logprobs"] == [{"\ufffd": -0.5, "a": -2.0}]


def test_completion_logprobs_are_four_arrays() -> None:
    encoded = encode_completion_logprobs(
        [likely("x", -1.0), likely("yz", -2.0, 1)],
        0,
        4,
        (PromptToken("hi"), PromptToken(" 😀", -3.0)),
    )
    assert encoded == {
        "tokens": ["hi", " 😀", "x", "yz"],
        "token_logprobs": [None, -3.0, -1.0, -2.0],
        "top_logprobs": [None, {" 😀": -3.0}, {"x": -1.0}, {"yz": -2.0}],
        "text_offset": [0, 2, 4, 5],
    }
    assert encode_completion_logprobs((), 5, 0) == {key: [] for key in encoded}


def test_chat_content() -> None:
    half = TokenLogprob("\ufffd", -1.0, (("\ufffd", -1.0), ("é", -2.0)), b"\xf0\x9f", 0)
    assert encode_chat_logprobs([half], 1) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.0,
                "bytes": [0xF0, 0x9F],
                # Its bytes are unknown.
                "top_logprobs": [{"token": "\ufffd", "logprob": -1.0, "bytes": None}],
            }
        ],
        "refusal": None,
    }
    tops = encode_chat_logprobs([half], 20)["content"][0]["top_logprobs"]
    assert tops[1] == {"token": "é", "logprob": -2.0, "bytes": [0xC3, 0xA9]}
    assert encode_chat_logprobs([half], 0)["content"][0]["top_logprobs"] == []
    assert encode_chat_logprobs((), 0) == {"content": [], "refusal": None}


def test_logprobs_within_returns_the_tokens_that_start_in_the_text() -> None:
    tokens = [likely("a", -1.0, 0), likely("", -1.0, 1), likely("b", -1.0, 1), likely("c", -1.0, 2)]
    for chars, count in ((0, 0), (1, 1), (2, 3), (3, 4)):
        assert logprobs_within(tokens, chars) == tokens[:count]


# -- streamed -----------------------------------------------------------------------------------


def parts_of(call: OpenAICall, *batches: list[Delta]) -> list[list[str]]:
    """Return the tokens of each event, with its text first."""
    call.encode_opening(0)
    event_tokens: list[list[str]] = []
    for batch in batches:
        if block := call.encode_delta(batch):
            (chunk,) = reading.read_chunks([block + DONE])
            logprobs = chunk["choices"][0]["logprobs"]
            if logprobs is None:
                event_tokens.append([])
            elif "tokens" in logprobs:
                event_tokens.append(logprobs["tokens"])
            else:
                event_tokens.append([each["token"] for each in logprobs["content"]])
    return event_tokens


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_token_is_sent_with_its_text_and_not_before(
    shape: EndpointSpec, body: dict[str, Any]
) -> None:
    # R26: tokens must not reveal text that is held back as a possible stop string.
    call = OpenAICall(shape, {**body, "stream": True}, "tiny")
    response = parts_of(
        call,
        [Delta("one ", likely("one ", -1.0, 0))],
        [Delta("", likely("fi", -1.0, 4))],
        [Delta("", likely("v", -1.0, 6))],
        [Delta("fivy", likely("y", -1.0, 7))],
        [Delta("fi"), Delta("", likely("fi", -1.0, 8))],
        [Delta("ve", likely("ve", -1.0, 10)), Delta("", likely("never", -1.0, 12))],
    )
    assert response == [["one "], ["fi", "v", "y"], ["fi"], ["ve"]]


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_text_without_tokens_has_null_logprobs(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # Held-back text that is sent at the end has no token of its own.
    call = OpenAICall(shape, {**body, "stream": True}, "tiny")
    response = parts_of(call, [Delta("a", likely("abc", -1.0, 0))], [Delta("bc")])
    assert response == [["abc"], []]


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_tokens_that_exceed_an_event_are_sent_in_several(
    shape: EndpointSpec, body: dict[str, Any]
) -> None:
    # White space is held back until it is clear what follows; so are its tokens.
    call = OpenAICall(shape, {**body, "stream": True}, "tiny")
    tops = tuple((f"{number}", -1.0) for number in range(20))
    token_logprobs = [TokenLogprob("\n", -1.0, tops, b"\n", at) for at in range(1000)]
    blocks = [
        call.encode_opening(0),
        call.encode_delta([Delta("\n", each) for each in token_logprobs]),
    ]
    blocks += [
        call.encode_delta([Delta("x", likely("x", -1.0, 1000))]),
        call.encode_closing(ended(call)),
    ]
    response = reading.read_stream([*filter(None, blocks), DONE])
    assert response.choices[0].text == "\n" * 1000 + "x"
    logprobs = response.choices[0].logprobs or {}
    tokens = logprobs.get("tokens") or [each["token"] for each in logprobs["content"]]
    assert tokens == ["\n"] * 1000 + ["x"]
    assert max(map(len, b"".join(blocks).split(b"\n\n"))) < BLOCK_BYTES


@pytest.mark.parametrize("pieces", [True, False], ids=["by token", "as text"])
def test_long_echo_is_sent_in_several_events(pieces: bool) -> None:
    # R14
    call = OpenAICall(
        COMPLETIONS, {"prompt": "hi", "echo": True, "logprobs": 1, "stream": True}, "t"
    )
    words = [f" {number}" for number in range(20_000)]
    tokens = tuple(PromptToken(word, -1.0, ((word, -1.0),)) for word in words)
    call.echoes = [Echo("".join(words), tokens if pieces else ())]
    blocks = [call.encode_opening(0), call.encode_closing(ended(call)), DONE]
    (choice,) = reading.read_stream(blocks).choices.values()
    assert choice.text == "".join(words)
    if pieces:
        assert choice.logprobs == encode_completion_logprobs((), 1, len(choice.text), tokens)
    assert max(map(len, b"".join(blocks).split(b"\n\n"))) < BLOCK_BYTES


def ended(call: OpenAICall) -> CompletedAnswer:
    return CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=0,
        text="",
        reply=Reply(text=""),
        deltas=(),
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, 1)),
        streaming=True,
    )


# -- engines that have none ---------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_engine_without_logprobs_sends_null(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # R13, R16: empty arrays would mean that there were no tokens.
    call = OpenAICall(shape, {**body, "stream": True}, "tiny")
    answer = CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=0,
        text="text",
        reply=Reply(text="text"),
        deltas=("text",),
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, 1)),
        streaming=True,
        warnings=("logprobs are not known",),
    )
    full = reading.read_response(call.encode_response(answer))
    blocks = [
        call.encode_opening(0),
        call.encode_delta([Delta("text")]),
        call.encode_closing(answer),
        DONE,
    ]
    streamed = reading.read_stream([block for block in blocks if block])
    assert full.choices[0].logprobs is None
    assert streamed.choices == full.choices
    assert streamed.warnings == full.warnings == ["logprobs are not known"]


@pytest.mark.parametrize(("shape", "body"), BODIES)
async def test_engine_without_logprobs_causes_a_warning(
    shape: EndpointSpec, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R16
    route = calls.COMPLETIONS if shape is COMPLETIONS else calls.CHAT
    service = OpenAIService(pipeline_of(capabilities={"max_logprobs": 0}))
    warning = "logprobs is not supported by the scripted engine and was ignored"
    for complete_call in (calls.complete, calls.complete_streamed):
        assert (await complete_call(service, route, body | {"n": 2})).warnings == [warning]


@pytest.mark.parametrize("max_logprobs", [1, 2, 3])
async def test_engine_with_fewer_alternatives_causes_a_warning(
    max_logprobs: int, pipeline_of: PipelineFactory
) -> None:
    # R16
    service = OpenAIService(pipeline_of(capabilities={"max_logprobs": max_logprobs}))
    warning = (
        f"logprobs were limited to {max_logprobs} alternatives by the scripted engine, "
        "and 2 were requested"
    )
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 2,
    }
    for complete_call in (calls.complete, calls.complete_streamed):
        for route, body in (
            (calls.COMPLETIONS, {"prompt": "hi", "logprobs": 2}),
            (calls.CHAT, chat),
        ):
            assert (await complete_call(service, route, body)).warnings == (
                [warning] if max_logprobs < 2 else []
            )


@pytest.mark.parametrize(("shape", "body"), BODIES)
async def test_empty_answer_has_no_tokens(
    shape: EndpointSpec, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    route = calls.COMPLETIONS if shape is COMPLETIONS else calls.CHAT
    service = OpenAIService(pipeline_of({"pieces": []}))
    full = await calls.complete(service, route, body)
    logprobs = full.choices[0].logprobs
    assert logprobs in (encode_completion_logprobs((), 0, 0), encode_chat_logprobs((), 0))
    assert (await calls.complete_streamed(service, route, body)).choices[0].logprobs is None


@pytest.mark.parametrize("complete_call", [calls.complete, calls.complete_streamed])
@pytest.mark.parametrize("route", [calls.COMPLETIONS, calls.CHAT])
async def test_token_of_a_cut_off_character_keeps_its_entry(
    pipeline_of: PipelineFactory, complete_call: calls.Complete, route: str
) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["a", {"hex": "f09f"}, {"hex": "9880"}]}))
    body: dict[str, Any] = {"max_tokens": 2, "logprobs": True if route == calls.CHAT else 1}
    turns = [{"role": "user", "content": "hi"}]
    body |= {"messages": turns} if route == calls.CHAT else {"prompt": "hi"}
    response = await complete_call(service, route, body)
    assert response.choices[0].text == "a"
    logprobs = response.choices[0].logprobs
    assert logprobs is not None
    if route == calls.CHAT:
        assert [each["bytes"] for each in logprobs["content"]] == [[97], [0xF0, 0x9F]]
    else:
        assert logprobs["tokens"] == ["a", "\ufffd"]
        assert logprobs["text_offset"] == [0, 1]


THINKING = ("<think>", "hm", "</think>", "\n\n", "Yes", ".")
CALLING = (
    "Let",
    " me",
    '<tool_call>{"name": "f", ',
    '"arguments": {}}',
    "</tool_call>",
    "\n",
    "ok",
)
FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("pieces", "extra", "expected"),
    [
        (THINKING, {}, ["Yes", "."]),
        (CALLING, {"tools": [FUNCTION]}, ["Let", " me", "\n", "ok"]),
        (("<think>", "never", " ends"), {}, []),
        (("<think>", "a</think>b", "c"), {}, ["c"]),
        (("plain", " text"), {}, ["plain", " text"]),
        ((*THINKING, "STOP"), {"stop": "STOP"}, ["Yes", "."]),
    ],
)
@pytest.mark.parametrize("complete", [calls.complete, calls.complete_streamed])
async def test_logprobs_of_a_chat_are_those_of_its_content(
    pipeline_of: PipelineFactory,
    complete: calls.Complete,
    pieces: tuple[str, ...],
    extra: dict[str, Any],
    expected: list[str],
) -> None:
    service = OpenAIService(pipeline_of({"pieces": list(pieces)}))
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, **extra}
    response = await complete(service, calls.CHAT, body)
    entries = (response.choices[0].logprobs or {}).get("content") or []
    assert [entry["token"] for entry in entries] == expected
    for chunk in response.sent:
        for choice in chunk["choices"]:
            # A token comes with its text, never before it.
            tokens = [entry["token"] for entry in (choice["logprobs"] or {}).get("content", ())]
            assert "".join(tokens) in (choice["delta"].get("content") or "")


@pytest.mark.parametrize(
    ("pieces", "starts_in_reasoning", "extra"),
    [
        (("<think>", "\n", "</think>", "\n\n"), False, {}),
        (("</think>", "\n\n"), True, {}),
        (("\n",), True, {}),
        (("<|channel|>final", "<|message|>"), False, {}),
        (("</think>", "\n\n"), True, {"tools": [FUNCTION]}),
    ],
    ids=["empty reasoning", "closed", "open", "header", "closed, with tools"],
)
@pytest.mark.parametrize("complete", [calls.complete, calls.complete_streamed])
async def test_chat_without_content_has_no_logprobs(
    pipeline_of: PipelineFactory,
    complete: calls.Complete,
    pieces: tuple[str, ...],
    starts_in_reasoning: bool,
    extra: dict[str, Any],
) -> None:
    capabilities = {"starts_in_reasoning": starts_in_reasoning}
    service = OpenAIService(pipeline_of({"pieces": list(pieces)}, capabilities=capabilities))
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, **extra}
    choice = (await complete(service, calls.CHAT, body)).choices[0]
    assert not choice.text
    assert not (choice.logprobs or {}).get("content")

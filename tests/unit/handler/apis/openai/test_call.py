"""OpenAI's two text routes: bodies and events as the `openai` package itself would read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from engine import Chat, Delta, Finish, FinishReason, Message, Priority, Usage
from engine.reply.reply import Reply
from handler.apis.core.best_of import build_requests
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.errors import InvalidRequest
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai.reading import check_chunk, text_of
from tests.usage import usage
from validation import Verdict

TURNS = [{"role": "user", "content": "hi"}]
CHAT_BODY: dict[str, Any] = {"messages": TURNS}
TEXT_BODY: dict[str, Any] = {"prompt": "hi"}
SHAPES = [
    pytest.param(COMPLETIONS, TEXT_BODY, id="completions"),
    pytest.param(CHAT, CHAT_BODY, id="chat"),
]
FINISH = Finish(reason=FinishReason.STOP, usage=Usage(7, 3))
USAGE = usage(7, 3)
# Without the characters that a mark of reasoning starts with: hypothesis tries strings of the code.
_TEXTS = st.text(st.characters(exclude_characters="<[◁", exclude_categories=["Cs"]), min_size=1)


def create_call(
    shape: EndpointSpec, body: dict[str, Any], max_tokens: int | None = None
) -> OpenAICall:
    return OpenAICall(shape, body, "tiny", CallDefaults(max_tokens=max_tokens))


def answer(
    call: OpenAICall, *deltas: str, finish: Finish = FINISH, **fields: Any
) -> CompletedAnswer:
    return CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=1_700_000_000,
        text="".join(deltas),
        reply=Reply(text="".join(deltas)),
        deltas=deltas,
        finish=finish,
        streaming=build_requests(call.parsed)[0].streaming,
        **fields,
    )


def stream(call: OpenAICall, *batches: Sequence[str], **fields: Any) -> list[dict[str, Any]]:
    """All chunks of a streamed answer; each method must have returned complete events."""
    deltas = [text for batch in batches for text in batch]
    blocks = [
        call.encode_opening(1_700_000_000),
        *[call.encode_delta([Delta(text) for text in batch]) for batch in batches],
        call.encode_closing(answer(call, *deltas, **fields)),
    ]
    chunks = []
    for block in filter(None, blocks):
        assert block.endswith(b"\n\n")
        for event in block[:-2].split(b"\n\n"):
            assert event.startswith(b"data: ")
            assert b"\n" not in event
            chunks.append(json.loads(event.removeprefix(b"data: ")))
    return chunks


# -- complete answers ---------------------------------------------------------------------------


def test_encode_response_of_a_completion() -> None:
    # R1-R3
    call = create_call(COMPLETIONS, TEXT_BODY)
    body = call.encode_response(answer(call, "Hello", " world"))
    assert body == {
        "id": call.parsed.id,
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    assert body["id"].startswith("cmpl-")
    Completion.model_validate(body, strict=True)


def test_encode_response_of_a_chat() -> None:
    # R35
    call = create_call(CHAT, CHAT_BODY)
    body = call.encode_response(answer(call, "Hello", " world"))
    assert body == {
        "id": call.parsed.id,
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    assert body["id"].startswith("chatcmpl-")
    ChatCompletion.model_validate(body, strict=True)


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_finish_reasons(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # R3, R11
    length = Finish(reason=FinishReason.LENGTH, usage=Usage(1, 1))
    stopped = Finish(reason=FinishReason.STOP, usage=Usage(1, 1), stop_reason="five")
    for finish, expected in ((length, ("length", None)), (stopped, ("stop", "five"))):
        call = create_call(shape, {**body, "stream": True})
        choice = call.encode_response(answer(call, "x", finish=finish))["choices"][0]
        last = stream(call, ["x"], finish=finish)[-1]["choices"][0]
        for each in (choice, last):
            assert (each["finish_reason"], each.get("stop_reason")) == expected


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_warnings_are_in_the_response(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # R16
    call = create_call(shape, {**body, "stream": True})
    assert call.encode_response(answer(call, "x", warnings=("one",)))["warnings"] == ["one"]
    assert "warnings" not in call.encode_response(answer(call, "x"))
    chunks = stream(call, ["x"], warnings=("one",))
    assert [chunk.get("warnings") for chunk in chunks if "warnings" in chunk] == [["one"]]
    assert all("warnings" not in chunk for chunk in stream(call, ["x"]))


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_call_ids_are_unique(shape: EndpointSpec, body: dict[str, Any]) -> None:
    ids = {create_call(shape, body).parsed.id for _ in range(50)}
    assert len(ids) == 50


# -- streamed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "body"), SHAPES)
@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": False}, {}])
def test_every_chunk_is_valid_for_openai(
    shape: EndpointSpec, body: dict[str, Any], options: dict[str, Any] | None
) -> None:
    # R20, R36
    call = create_call(shape, {**body, "stream": True, "stream_options": options})
    chunks = stream(call, ["He"], ["llo", " wor"], ["ld"])
    for chunk in chunks:
        check_chunk(chunk)
        assert chunk["id"] == call.parsed.id
        assert chunk["object"] == shape.chunk_object
        assert chunk["created"] == 1_700_000_000
        assert chunk["model"] == "tiny"
    with_choice = [chunk for chunk in chunks if chunk["choices"]]
    for chunk in with_choice:
        (choice,) = chunk["choices"]
        part = "text" if shape is COMPLETIONS else "delta"
        assert set(choice) == {"index", part, "logprobs", "finish_reason"}
        assert choice["index"] == 0
        assert choice["logprobs"] is None


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_exactly_one_chunk_finishes_and_it_has_no_text(
    shape: EndpointSpec, body: dict[str, Any]
) -> None:
    # R21
    call = create_call(shape, {**body, "stream": True})
    *others, last = stream(call, ["Hello"], [" world"])
    assert last["choices"][0]["finish_reason"] == "stop"
    assert text_of(last["choices"][0]) == ""
    assert [chunk["choices"][0]["finish_reason"] for chunk in others] == [None] * len(others)


def test_chat_begins_with_the_role_and_ends_with_an_empty_delta() -> None:
    # R36
    call = create_call(CHAT, {**CHAT_BODY, "stream": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(call, ["Hello"], [" world"])]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]


def test_completion_begins_with_its_text() -> None:
    # R20
    call = create_call(COMPLETIONS, {**TEXT_BODY, "stream": True})
    texts = [chunk["choices"][0]["text"] for chunk in stream(call, ["Hello"], [" world"])]
    assert texts == ["Hello", " world", ""]


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_usage_is_on_the_finish_chunk_by_default(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # R22
    chunks = stream(create_call(shape, {**body, "stream": True}), ["Hello"])
    assert chunks[-1]["usage"] == USAGE
    assert chunks[-1]["choices"]
    assert all("usage" not in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_usage_has_its_own_chunk_with_include_usage(
    shape: EndpointSpec, body: dict[str, Any]
) -> None:
    # R22
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *others, last = stream(create_call(shape, body | options), ["Hello"])
    assert last["choices"] == []
    assert last["usage"] == USAGE
    assert others[-1]["choices"][0]["finish_reason"] == "stop"
    for chunk in others:
        assert chunk["choices"]
        assert chunk["usage"] is None


@pytest.mark.parametrize(("shape", "body"), SHAPES)
@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
def test_usage_is_absent_with_include_usage_false(
    shape: EndpointSpec, body: dict[str, Any], options: dict[str, Any]
) -> None:
    # R22
    call = create_call(shape, {**body, "stream": True, "stream_options": options})
    for chunk in stream(call, ["Hello"]):
        assert "usage" not in chunk
        assert chunk["choices"]


@pytest.mark.parametrize(("shape", "body"), SHAPES)
@given(batches=st.lists(st.lists(_TEXTS, min_size=1)))
def test_joined_deltas_equal_the_full_text(
    shape: EndpointSpec, body: dict[str, Any], batches: list[list[str]]
) -> None:
    # R24; quotes, line ends and control characters included.
    call = create_call(shape, {**body, "stream": True})
    chunks = stream(call, *batches)
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == "".join(
        text for batch in batches for text in batch
    )


# -- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "becomes"),
    [
        ("hi", "hi"),
        (["hi"], "hi"),
        ([1, 2, 3], (1, 2, 3)),
        ([[1, 2, 3]], (1, 2, 3)),
        ([0, 2**31 - 1], (0, 2**31 - 1)),
    ],
)
def test_prompt_formats(prompt: Any, becomes: Any) -> None:
    # R5
    assert create_call(COMPLETIONS, {"prompt": prompt}).parsed.prompts[0] == becomes


def test_messages_and_template_arguments_are_read_as_a_chat() -> None:
    # R34, R39
    call = create_call(CHAT, {**CHAT_BODY, "chat_template_kwargs": {"enable_thinking": False}})
    assert call.parsed.prompts[0] == Chat((Message("user", "hi"),), {"enable_thinking": False})
    unset = create_call(CHAT, {**CHAT_BODY, "chat_template_kwargs": None})
    assert unset.parsed.prompts[0] == Chat((Message("user", "hi"),), {})


def deep() -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for _ in range(600):
        nested = {"a": nested}
    return nested


@pytest.mark.parametrize(
    "value", [5, "x", [], False, "", {"a": 10**30}, {"a": "\ud800"}, {"\ud800": 1}, deep()], ids=str
)
def test_template_arguments_that_cannot_be_encoded_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^chat_template_kwargs must be an object") as raised:
        create_call(CHAT, {**CHAT_BODY, "chat_template_kwargs": value})
    assert raised.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(("shape", "body"), SHAPES)
@pytest.mark.parametrize("model", [None, "tiny"])
def test_model_is_optional(shape: EndpointSpec, body: dict[str, Any], model: str | None) -> None:
    # R7
    call = create_call(shape, {**body, "model": model})
    assert call.encode_response(answer(call, "x"))["model"] == "tiny"


def test_call_has_interactive_priority_and_openai_defaults() -> None:
    # R9
    generation = build_requests(create_call(COMPLETIONS, TEXT_BODY).parsed)[0].generation
    assert generation.priority is Priority.INTERACTIVE
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, -1)
    assert sampling.max_tokens is None
    assert not build_requests(create_call(COMPLETIONS, TEXT_BODY).parsed)[0].streaming


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({}, 9), ({"max_tokens": 5}, 5), ({"max_completion_tokens": 6, "max_tokens": 5}, 6)],
)
def test_max_tokens_falls_back_to_the_default(fields: dict[str, int], limit: int) -> None:
    # R8
    call = create_call(CHAT, CHAT_BODY | fields, max_tokens=9)
    assert call.parameters.sampling.max_tokens == limit


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_validation_is_off_unless_requested(shape: EndpointSpec, body: dict[str, Any]) -> None:
    # R47: off by default, because it is not part of OpenAI's API.
    assert create_call(shape, body).parsed.validates is False
    assert create_call(shape, {**body, "enable_validation": None}).parsed.validates is False
    assert create_call(shape, {**body, "enable_validation": True}).parsed.validates is True


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_verdict_is_on_the_body_and_on_the_chunk_that_finishes(
    shape: EndpointSpec, body: dict[str, Any]
) -> None:
    # R21, R22
    verdict = Verdict(text="x", intent="general")
    for options in (None, {"include_usage": True}):
        call = create_call(shape, {**body, "stream": True, "stream_options": options})
        response: dict[str, Any] = {"verdict": verdict, "redacted": {"card": 1}}
        full = call.encode_response(answer(call, "x", **response))
        chunks = stream(call, ["x"], **response)
        (last,) = [
            chunk
            for chunk in chunks
            if chunk["choices"] and chunk["choices"][0]["finish_reason"] is not None
        ]
        for each in (full, last):
            assert each["validation"]["valid"] is True
            assert each["redacted"] == {"card": 1}
        others = [chunk for chunk in chunks if chunk is not last]
        assert not any({"validation", "redacted"} & chunk.keys() for chunk in others)


@pytest.mark.parametrize(("shape", "body"), SHAPES)
def test_wrong_option_error_names_its_path(shape: EndpointSpec, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        create_call(shape, {**body, "validation": {"language": 5}})
    assert raised.value.param == "validation.language"
    assert raised.value.message == "validation.language must be an ISO 639-1 code such as en, got 5"

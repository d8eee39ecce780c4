"""The four APIs read one conversation as the same call, and their errors name the wrong field."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import Chat, SamplingParams
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.messages.request import read_request as read_messages_request
from handler.apis.ollama.request import read_chat as read_ollama_chat
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.responses.request import read_request as read_responses_request
from handler.errors import InvalidRequest
from tests.unit.handler.apis.served_model import TINY
from tests.unit.handler.input.images import png

IMAGE = base64.b64encode(png(2, 2)).decode()
DEFAULTS = CallDefaults()
_NAMES = st.sampled_from(["add", "look_up", "sub-2"])
_TEXTS = st.text(min_size=1, max_size=12)
_SCHEMAS = st.sampled_from(
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}},
    ]
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, the calls of the assistant with their results, and its answer."""

    question: str
    has_image: bool
    calls: Sequence[tuple[str, Mapping[str, int], str]]
    answer: str
    reasoning: str


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str | None
    turns: Sequence[Turn]
    question: str
    tools: Mapping[str, Mapping[str, Any]]
    constrains_calls: bool
    schema: Mapping[str, Any] | None
    temperature: float
    max_tokens: int
    stop: Sequence[str]


_ARGUMENTS = st.dictionaries(st.text("abü", min_size=1, max_size=3), st.integers(), max_size=2)
_TURNS = st.builds(
    Turn,
    _TEXTS,
    st.booleans(),
    st.lists(st.tuples(_NAMES, _ARGUMENTS, st.text(max_size=8)), max_size=2),
    _TEXTS,
    st.just("") | _TEXTS,
)
_CONVERSATIONS = st.builds(
    Conversation,
    st.none() | _TEXTS,
    st.lists(_TURNS, max_size=3),
    _TEXTS,
    st.dictionaries(_NAMES, _SCHEMAS, max_size=2),
    st.booleans(),
    st.none() | _SCHEMAS,
    st.floats(0, 1),
    st.integers(1, 500),
    st.lists(_TEXTS, max_size=2),
)


def call_ids(conversation: Conversation) -> list[list[str]]:
    numbers = iter(range(100))
    return [[f"call_{next(numbers)}" for _ in turn.calls] for turn in conversation.turns]


def openai_body(conversation: Conversation) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if conversation.system is not None:
        messages.append({"role": "developer", "content": conversation.system})
    for turn, ids in zip(conversation.turns, call_ids(conversation), strict=True):
        content: Any = turn.question
        if turn.has_image:
            url = {"url": f"data:image/png;base64,{IMAGE}"}
            content = [
                {"type": "image_url", "image_url": url},
                {"type": "text", "text": turn.question},
            ]
        messages.append({"role": "user", "content": content})
        if turn.calls:
            calls = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments, ensure_ascii=False),
                    },
                }
                for call_id, (name, arguments, _) in zip(ids, turn.calls, strict=True)
            ]
            called = {"role": "assistant", "content": None, "tool_calls": calls}
            messages.append(called | {"reasoning_content": turn.reasoning})
            messages += [
                {"role": "tool", "tool_call_id": call_id, "content": result}
                for call_id, (_, _, result) in zip(ids, turn.calls, strict=True)
            ]
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": conversation.question})
    body: dict[str, Any] = {"messages": messages, "tools": openai_tools(conversation)}
    if conversation.constrains_calls and conversation.tools:
        body["tool_choice"] = "required"
    if conversation.schema is not None:
        form = {"name": "answer", "schema": conversation.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body | sampling_of(conversation) | {"stop": list(conversation.stop)}


def openai_tools(conversation: Conversation) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in conversation.tools.items()
    ]


def sampling_of(conversation: Conversation) -> dict[str, Any]:
    return {
        "max_tokens": conversation.max_tokens,
        "temperature": conversation.temperature,
        "top_k": 5,
        "top_p": 0.5,
    }


def messages_body(conversation: Conversation) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for turn, ids in zip(conversation.turns, call_ids(conversation), strict=True):
        content: Any = turn.question
        if turn.has_image:
            source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
            content = [
                {"type": "image", "source": source},
                {"type": "text", "text": turn.question},
            ]
        messages.append({"role": "user", "content": content})
        if turn.calls:
            pairs = list(zip(ids, turn.calls, strict=True))
            thinking = {"type": "thinking", "thinking": turn.reasoning, "signature": "s"}
            uses: list[dict[str, Any]] = [thinking] if turn.reasoning else []
            uses += [
                {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
                for call_id, (name, arguments, _) in pairs
            ]
            results = [
                {"type": "tool_result", "tool_use_id": call_id, "content": result}
                for call_id, (_, _, result) in pairs
            ]
            messages.append({"role": "assistant", "content": uses})
            messages.append({"role": "user", "content": results})
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": conversation.question})
    tools = [{"name": name, "input_schema": schema} for name, schema in conversation.tools.items()]
    body: dict[str, Any] = {"messages": messages, "system": conversation.system, "tools": tools}
    if conversation.constrains_calls and conversation.tools:
        body["tool_choice"] = {"type": "any"}
    if conversation.schema is not None:
        form = {"type": "json_schema", "schema": conversation.schema}
        body["output_config"] = {"format": form}
    return body | sampling_of(conversation) | {"stop_sequences": list(conversation.stop)}


def responses_body(conversation: Conversation) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for turn, ids in zip(conversation.turns, call_ids(conversation), strict=True):
        parts: list[dict[str, Any]] = [{"type": "input_text", "text": turn.question}]
        if turn.has_image:
            url = f"data:image/png;base64,{IMAGE}"
            parts.insert(0, {"type": "input_image", "image_url": url})
        items.append({"type": "message", "role": "user", "content": parts})
        if turn.calls and turn.reasoning:
            thought = [{"type": "reasoning_text", "text": turn.reasoning}]
            items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": thought})
        for call_id, (name, arguments, _) in zip(ids, turn.calls, strict=True):
            text = json.dumps(arguments, ensure_ascii=False)
            call = {"call_id": call_id, "name": name, "arguments": text}
            items.append({"type": "function_call", **call})
        for call_id, (_, _, result) in zip(ids, turn.calls, strict=True):
            output = {"call_id": call_id, "output": result}
            items.append({"type": "function_call_output", **output})
        answer = [{"type": "output_text", "text": turn.answer}]
        items.append({"type": "message", "role": "assistant", "content": answer})
    items.append({"role": "user", "content": conversation.question})
    tools = [
        {"type": "function", "name": name, "parameters": schema}
        for name, schema in conversation.tools.items()
    ]
    body: dict[str, Any] = {"input": items, "instructions": conversation.system, "tools": tools}
    if conversation.constrains_calls and conversation.tools:
        body["tool_choice"] = "required"
    if conversation.schema is not None:
        form = {"type": "json_schema", "name": "answer", "schema": conversation.schema}
        body["text"] = {"format": form}
    sampling = sampling_of(conversation)
    sampling["max_output_tokens"] = sampling.pop("max_tokens")
    return body | sampling | {"stop": list(conversation.stop)}


def ollama_body(conversation: Conversation) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if conversation.system is not None:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        message: dict[str, Any] = {"role": "user", "content": turn.question}
        messages.append(message | ({"images": [IMAGE]} if turn.has_image else {}))
        if turn.calls:
            calls = [
                {"function": {"name": name, "arguments": arguments}}
                for name, arguments, _ in turn.calls
            ]
            called = {"role": "assistant", "content": "", "tool_calls": calls}
            messages.append(called | {"thinking": turn.reasoning})
            messages += [{"role": "tool", "content": result} for _, _, result in turn.calls]
        messages.append({"role": "assistant", "content": turn.answer})
    messages.append({"role": "user", "content": conversation.question})
    options = sampling_of(conversation) | {"stop": list(conversation.stop)}
    options["num_predict"] = options.pop("max_tokens")
    body = {"messages": messages, "tools": openai_tools(conversation), "options": options}
    return body | ({} if conversation.schema is None else {"format": conversation.schema})


def read_openai(body: dict[str, Any]) -> ParsedCall:
    return OpenAICall(CHAT, body, "tiny").parsed


def read_messages(body: dict[str, Any]) -> ParsedCall:
    return read_messages_request(body, TINY, DEFAULTS)


def read_responses(body: dict[str, Any]) -> ParsedCall:
    return read_responses_request(body, (), "", TINY, DEFAULTS).call


def read_ollama(body: dict[str, Any]) -> ParsedCall | None:
    return read_ollama_chat(body, TINY, DEFAULTS).call


def describe(call: ParsedCall | None) -> tuple[Chat, SamplingParams, Any]:
    assert call is not None
    (chat,) = call.prompts
    assert isinstance(chat, Chat)
    assert call.warnings == ()
    return chat, call.parameters.sampling, call.reply_format


# Reasoning that begins with a line break.
@example(
    Conversation(
        None,
        [Turn("0", False, [("add", {}, "")], "0", "\n")],
        *("0", {}, False, None, 0.0, 1, []),
    )
)
@given(_CONVERSATIONS)
def test_one_conversation_is_the_same_call_in_all_apis(conversation: Conversation) -> None:
    openai = describe(read_openai(openai_body(conversation)))
    assert describe(read_messages(messages_body(conversation))) == openai
    assert describe(read_responses(responses_body(conversation))) == openai
    if not (conversation.constrains_calls and conversation.tools):
        # Ollama's API cannot require a call.
        assert describe(read_ollama(ollama_body(conversation))) == openai


_EXAMPLE = Conversation(
    system="Be brief.",
    turns=[
        Turn("What is it?", True, [("add", {"a": 1}, "2"), ("add", {}, "3")], "It is 5.", "Sum")
    ],
    question="And now?",
    tools={"add": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    constrains_calls=True,
    schema={"type": "object"},
    temperature=0.5,
    max_tokens=9,
    stop=["x"],
)
_WRONG_VALUES: tuple[Any, ...] = (
    None,
    -1,
    1.5,
    1e30,
    True,
    "",
    "x",
    "\ud800",
    [],
    [3],
    {},
    {"type": "x"},
    [[]],
)
Path = tuple[str | int, ...]


def find_places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each value in a body."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from find_places(member, (*path, key))


def put(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return a copy of a body with another value in one place."""
    changed = deepcopy(body)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_openai, openai_body(_EXAMPLE)),
        (read_messages, messages_body(_EXAMPLE)),
        (read_responses, responses_body(_EXAMPLE)),
        (read_ollama, ollama_body(_EXAMPLE)),
    ],
    ids=["openai", "messages", "responses", "ollama"],
)
def test_wrong_value_in_any_place_is_named(
    read: Callable[[dict[str, Any]], object], body: dict[str, Any]
) -> None:
    errors = [
        (path, value, error)
        for path in find_places(body)
        for value in _WRONG_VALUES
        if (error := find_error(read, put(body, path, value))) is not None
    ]
    assert len(errors) > 100
    for path, value, error in errors:
        # The field of the body, and where the sentence has a place in it, the right one.
        assert re.split(r"[.\[]", str(error.param))[0] in body, (path, value, error.message)
        assert error.message.startswith(str(error.param)), (path, value, error.message)


def find_error(
    read: Callable[[dict[str, Any]], object], body: dict[str, Any]
) -> InvalidRequest | None:
    try:
        read(body)
    except InvalidRequest as error:
        return error
    return None

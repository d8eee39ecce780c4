"""Read bodies of the Messages API, and name the client's fields in errors."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Chat, Message, SamplingParams
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.messages.request import read_request
from handler.errors import InvalidRequest
from handler.input.sampling import MAX_INT32
from tests.unit.handler.apis.served_model import TINY
from tests.unit.handler.input.images import data_url, png

TURNS = [{"role": "user", "content": "hi"}]
USER = Message("user", "hi")
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def text_block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def read(**fields: Any) -> ParsedCall:
    return read_request({"messages": TURNS, **fields}, TINY, CallDefaults())


def read_chat(**fields: Any) -> Chat:
    (chat,) = read(**fields).prompts
    assert isinstance(chat, Chat)
    return chat


def read_messages(*messages: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    return read_chat(messages=[*messages], **fields).messages


def test_system_is_the_first_message() -> None:
    system = [text_block("a", cache_control={"type": "ephemeral"}), text_block("b")]
    for value, content in (("be brief", "be brief"), (system, "ab")):
        assert read_messages(*TURNS, system=value) == (Message("system", content), USER)
    assert read_messages(*TURNS, system="") == (USER,)


def test_calls_and_results_of_tools() -> None:
    messages = read_messages(
        {"role": "user", "content": [text_block("add "), text_block("1")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "sum", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                text_block("so:"),
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": "ü"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text_block("2")]},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": "no",
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "toolu_3"},
                text_block("go on"),
            ],
        },
    )
    function = {"name": "add", "arguments": '{"a": 1, "b": "ü"}'}
    call = {"id": "toolu_1", "type": "function", "function": function}
    assert messages == (
        Message("user", "add 1"),
        Message("assistant", "so:", tool_calls=(call,), reasoning="sum"),
        Message("tool", "2", tool_call_id="toolu_1"),
        Message("tool", "Error: no", tool_call_id="toolu_2"),
        Message("tool", "", tool_call_id="toolu_3"),
        Message("user", "go on"),
    )


def test_turns_of_servers_tools_are_skipped() -> None:
    turn = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            text_block("found"),
        ],
    }
    assert read_messages(*TURNS, turn, *TURNS)[1] == Message("assistant", "found")
    warnings = read(messages=[*TURNS, turn, *TURNS]).warnings
    assert [each.split()[0] for each in warnings] == [
        "messages[1].content[0]",
        "messages[1].content[1]",
    ]


@pytest.mark.parametrize(
    ("last", "continues"),
    [
        ({"role": "assistant", "content": "The answer is"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "user", "content": "hi"}, False),
    ],
)
def test_last_turn_of_the_assistant_is_continued(last: dict[str, Any], continues: bool) -> None:
    assert read_chat(messages=[*TURNS, last]).continues_last is continues


def test_sampling_is_passed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True, "max_tokens": 7}
    call = read(**fields, stop_sequences=["x"], metadata={"user_id": "u"})
    assert call.streaming
    assert call.parameters.sampling == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, stop=("x",)
    )
    assert call.warnings == ()


def test_max_tokens_beyond_every_context_is_not_refused() -> None:
    assert read(max_tokens=10**12).parameters.sampling.max_tokens == MAX_INT32
    call = read_request({"messages": TURNS}, TINY, CallDefaults(max_tokens=9))
    assert call.parameters.sampling.max_tokens == 9


def test_tools() -> None:
    described = TOOL | {"type": "custom", "description": "Adds.", "cache_control": {}}
    tools = [SEARCH, described]
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert read_chat(tools=tools).tools == ({"type": "function", "function": function},)
    assert read(tools=tools).warnings == (
        'tools[0] was skipped: tools of type "web_search_20250305" are not supported',
    )


@pytest.mark.parametrize(
    ("choice", "tools", "constrains_calls", "parallel"),
    [
        (None, [TOOL], False, True),
        ({"type": "auto"}, [TOOL], False, True),
        ({"type": "auto"}, [], False, True),
        ({"type": "any"}, [TOOL], True, True),
        ({"type": "any"}, [SEARCH], False, True),
        ({"type": "none"}, [TOOL], False, True),
        ({"type": "tool", "name": "add"}, [TOOL], True, True),
        ({"type": "tool", "name": "web_search"}, [TOOL, SEARCH], False, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, [TOOL], False, False),
        ({"type": "auto", "disable_parallel_tool_use": False}, [TOOL], False, True),
    ],
)
def test_tool_choice(choice: Any, tools: list[Any], constrains_calls: bool, parallel: bool) -> None:
    call = read(tools=tools, tool_choice=choice)
    assert call.reply_format is not None
    assert (call.reply_format.constrains_calls, call.reply_format.parallel_calls) == (
        constrains_calls,
        parallel,
    )
    assert (call.constraint is not None) is constrains_calls
    offers = TOOL in tools and choice != {"type": "none"}
    assert list(call.reply_format.functions) == (["add"] if offers else [])


@pytest.mark.parametrize(
    ("thinking", "is_on", "budget"),
    [
        (None, None, None),
        ({"type": "enabled", "budget_tokens": 2048}, True, 2048),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
    ],
)
def test_thinking(thinking: Any, is_on: bool | None, budget: int | None) -> None:
    variables = {} if is_on is None else {"enable_thinking": is_on, "thinking": is_on}
    assert read_chat(thinking=thinking).template_kwargs == variables
    assert read(thinking=thinking).reasoning_budget == budget


def test_effort_does_not_turn_thinking_on() -> None:
    effort = {"effort": "max"}
    assert read_chat(output_config=effort).template_kwargs == {}
    off = read_chat(output_config=effort, thinking={"type": "disabled"}).template_kwargs
    assert off == {"enable_thinking": False, "thinking": False}
    on = read_chat(output_config=effort, thinking={"type": "adaptive"}).template_kwargs
    assert on["reasoning_effort"] == "xhigh"


def test_form_of_the_answer() -> None:
    form = {"type": "json_schema", "schema": {"type": "null"}}
    call = read(output_config={"format": form})
    assert call.parameters.sampling.json_schema == {"type": "null"}


def test_unknown_fields_are_warnings() -> None:
    body = {"messages": TURNS, "temprature": 1, "context_management": {"edits": []}, "beta": 1}
    assert read(**body).warnings == (
        "temprature is unknown and was ignored: did you mean temperature?",
        "context_management is not supported and was ignored",
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].source.url"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": TURNS, "system": 5}, "system"),
        ({"messages": TURNS, "system": [IMAGE]}, "system[0]"),
        ({"messages": TURNS, "system": [text_block("\ud800")]}, "system[0]"),
        ({"messages": TURNS, "system": "\ud800"}, "system"),
        (
            {"system": "a", "messages": [{"role": "user", "content": "\ud800"}]},
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a"}]}
                ]
            },
            "messages[0].content[0].input",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"thinking": {"type": "on"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": "a"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [SEARCH, TOOL | {"name": "a b"}]}, "tools"),
        ({"tools": [SEARCH, TOOL | {"input_schema": 5}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_errors_name_the_clients_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    error = caught.value
    assert error.param == param
    assert error.message.startswith(param)


def test_errors_about_tools_name_the_tool() -> None:
    for change, path in (({"name": "a b"}, "name"), ({"input_schema": 5}, "input_schema")):
        with pytest.raises(InvalidRequest, match=rf"^tools\[1\]\.{path} must be"):
            read(tools=[SEARCH, TOOL | change])


def test_images_of_the_user_keep_their_place() -> None:
    url = data_url(png())
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
    content = [image, text_block("a"), result, text_block("b"), image]
    messages = read_messages({"role": "user", "content": content})
    assert [message.content for message in messages] == ["a", "done", "b"]
    positions = [[each.position for each in message.images] for message in messages]
    assert positions == [[0], [], [1]]

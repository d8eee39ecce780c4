"""Translate bodies of the Messages API, and name the client's fields in errors."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Chat
from handler.apis.messages.request import translate_request
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.errors import InvalidRequest
from handler.input.messages import read_messages
from tests.unit.handler.input.images import data_url, png

TURNS = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def text_block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def translate(**fields: Any) -> dict[str, Any]:
    return dict(translate_request({"messages": TURNS, **fields}).body)


def translate_messages(*messages: dict[str, Any], **fields: Any) -> list[Any]:
    return list(translate(messages=[*messages], **fields)["messages"])


def read_error(body: dict[str, Any]) -> InvalidRequest:
    """Return the error of a body, from its translation or from the reader of chats."""
    try:
        translated = translate_request({"messages": TURNS, **body})
    except InvalidRequest as error:
        return error
    with pytest.raises(InvalidRequest) as caught, translated.field_names.in_errors():
        OpenAICall(CHAT, translated.body, "tiny", None)
    return caught.value


def test_system_is_the_first_message() -> None:
    system = [text_block("a", cache_control={"type": "ephemeral"}), text_block("b")]
    for value, content in (("be brief", "be brief"), (system, "ab")):
        first, second = translate_messages(*TURNS, system=value)
        assert first == {"role": "system", "content": content}
        assert second == TURNS[0]
    assert translate_messages(*TURNS, system="") == TURNS


def test_calls_and_results_of_tools() -> None:
    messages = translate_messages(
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
    assert messages == [
        {"role": "user", "content": "add 1"},
        {
            "role": "assistant",
            "content": "so:",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "2"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "user", "content": "go on"},
    ]


def test_turns_of_servers_tools_are_skipped() -> None:
    translated = translate_request(
        {
            "messages": [
                *TURNS,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                        text_block("found"),
                    ],
                },
                *TURNS,
            ]
        }
    )
    assert translated.body["messages"][1] == {"role": "assistant", "content": "found"}
    assert [each.split()[0] for each in translated.warnings] == [
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
    assert translate(messages=[*TURNS, last]).get("continue_final_message", False) is continues


def test_sampling_is_passed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True, "max_tokens": 7}
    body = translate(**fields, stop_sequences=["x"], metadata={"user_id": "u"})
    assert body == {"messages": TURNS, **fields, "stop": ["x"]}


def test_max_tokens_beyond_every_context_is_not_refused() -> None:
    call = OpenAICall(CHAT, translate(max_tokens=10**12), "tiny", None)
    assert call.parameters.sampling.max_tokens is not None
    assert OpenAICall(CHAT, translate(), "tiny", 9).parameters.sampling.max_tokens == 9


def test_tools() -> None:
    described = TOOL | {"type": "custom", "description": "Adds.", "cache_control": {}}
    translated = translate_request({"messages": TURNS, "tools": [SEARCH, described]})
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert translated.body["tools"] == [{"type": "function", "function": function}]
    assert translated.warnings == (
        'tools[0] was skipped: tools of type "web_search_20250305" are not supported',
    )


@pytest.mark.parametrize(
    ("choice", "tools", "fields"),
    [
        (None, [TOOL], {}),
        ({"type": "auto"}, [TOOL], {}),
        ({"type": "auto"}, [], {}),
        ({"type": "any"}, [TOOL], {"tool_choice": "required"}),
        ({"type": "any"}, [SEARCH], {}),
        ({"type": "none"}, [TOOL], {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "add"},
            [TOOL],
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"type": "tool", "name": "web_search"}, [TOOL, SEARCH], {}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            [TOOL],
            {"parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice(choice: Any, tools: list[Any], fields: dict[str, Any]) -> None:
    body = translate(tools=tools, tool_choice=choice)
    assert {name: body[name] for name in body.keys() - {"messages", "tools"}} == fields
    OpenAICall(CHAT, body, "tiny", None)


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
    call = OpenAICall(CHAT, translate(thinking=thinking), "tiny", None)
    variables = {} if is_on is None else {"enable_thinking": is_on, "thinking": is_on}
    (chat,) = call.prompts
    assert isinstance(chat, Chat)
    assert chat.template_kwargs == variables
    assert call.request.reasoning_budget == budget


def test_effort_does_not_turn_thinking_on() -> None:
    effort = {"effort": "max"}
    assert "reasoning_effort" not in translate(output_config=effort)
    assert "reasoning_effort" not in translate(output_config=effort, thinking={"type": "disabled"})
    body = translate(output_config=effort, thinking={"type": "adaptive"})
    assert body["reasoning_effort"] == "xhigh"


def test_form_of_the_answer() -> None:
    body = translate(output_config={"format": {"type": "json_schema", "schema": {"type": "null"}}})
    constraint = OpenAICall(CHAT, body, "tiny", None).response_mode.constraint
    assert constraint is not None
    assert constraint.json_schema == {"type": "null"}


def test_unknown_fields_are_warnings() -> None:
    body = {"messages": TURNS, "temprature": 1, "context_management": {"edits": []}, "beta": 1}
    assert translate_request(body).warnings == (
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
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": TURNS, "system": 5}, "system"),
        ({"messages": TURNS, "system": [IMAGE]}, "system[0]"),
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
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]",
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
    error = read_error(body)
    assert error.param == param
    assert error.message.startswith(param)


def test_errors_about_tools_name_the_tool() -> None:
    tools = [SEARCH, TOOL | {"name": "a b"}]
    assert read_error({"tools": tools}).message.startswith("tools[1].name must be")
    tools = [SEARCH, TOOL | {"input_schema": 5}]
    assert read_error({"tools": tools}).message.startswith("tools[1].input_schema must be")


def test_images_of_the_user_keep_their_place() -> None:
    url = data_url(png())
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
    content = [image, text_block("a"), result, text_block("b"), image]
    part = {"type": "image_url", "image_url": url}
    messages = translate_messages({"role": "user", "content": content})
    assert [message["content"] for message in messages] == [
        [part, {"type": "text", "text": "a"}],
        "done",
        [{"type": "text", "text": "b"}, part],
    ]
    assert [len(message.images) for message in read_messages(messages)] == [1, 0, 1]

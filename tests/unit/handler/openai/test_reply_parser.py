"""An assistant's text taken apart: the same parts however the text was cut (R24, R39)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.openai.reply_parser import ReplyParser
from handler.openai.tools import Tools, read_tools

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TIME = {"type": "function", "function": {"name": "time"}}
TOOLS = read_tools({"tools": [WEATHER, TIME]})
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>{"name": "time", "parameters": {}}</tool_call>'


def read(*texts: str, tools: Tools = TOOLS, starts_in_reasoning: bool = False) -> dict[str, Any]:
    """The message of a text, its calls without their random ids; deltas must add up to it."""
    reply = ReplyParser(tools, starts_in_reasoning=starts_in_reasoning)
    deltas = [delta for text in texts for delta in reply.push(text)] + reply.close()
    message = reply.message()
    for key in ("content", "reasoning_content"):
        assert "".join(delta.get(key, "") for delta in deltas) == (message.get(key) or "")
    streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in streamed] == list(range(len(streamed)))
    for call, of_stream in zip(message.get("tool_calls", ()), streamed, strict=True):
        assert of_stream == call | {"index": of_stream["index"]}
        assert call.pop("id").startswith("call_")
    return message


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "weather", "arguments": {"city": "Kö', '{"city": "Kö'),
        ('{"name":"weather","arguments":{', "{"),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": ', '{"city": '),
        ('[TOOL_CALLS][{"name": "weather", "parameters": {"a": [1, 2', '{"a": [1, 2'),
    ],
)
@pytest.mark.parametrize("pieces", [1, 100])
def test_call_that_a_limit_cuts_has_partial_arguments(
    text: str, arguments: str, pieces: int
) -> None:
    texts = [text] if pieces == 1 else list(text)
    parser = ReplyParser(TOOLS)
    deltas = [delta for part in texts for delta in parser.push(part)] + parser.close(is_cut=True)
    ((tool_call,),) = [delta["tool_calls"] for delta in deltas]
    assert tool_call["function"] == {"name": "weather", "arguments": arguments}
    message = parser.message()
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == tool_call["function"]
    # A text that has ended by itself is no call.
    assert read(text)["content"] == text


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "wea',
        '{"name": "unknown", "arguments": {"a": ',
        '{"name": "weather", "argum',
        '{"city": "Oslo", "name": "weather"',
        CALL.replace("Köln", 'Köln", "unit": "C'),
    ],
)
def test_cut_text_that_is_no_partial_call_stays_as_it_is(text: str) -> None:
    parser, whole = ReplyParser(TOOLS), ReplyParser(TOOLS)
    for each, is_cut in ((parser, True), (whole, False)):
        each.push(text)
        each.close(is_cut=is_cut)
    found = [
        [call["function"] for call in each.message().get("tool_calls", ())]
        for each in (parser, whole)
    ]
    assert parser.message()["content"] == whole.message()["content"]
    assert found[0] == found[1]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    said = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return {"type": "function", "function": {"name": name, "arguments": said}}


def test_plain_text_is_content() -> None:
    assert read(" a {b} <c>\n") == {
        "role": "assistant",
        "content": " a {b} <c>\n",
        "refusal": None,
    }


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        pytest.param(CALL, None, [call("weather", city="Köln")], id="hermes"),
        pytest.param(f"{CALL}\n{TIME_CALL}\n", None, [call("weather", city="Köln"), call("time")]),
        pytest.param(f"Let me see.\n\n{CALL}", "Let me see.", [call("weather", city="Köln")]),
        pytest.param('{"name": "time", "arguments": {}}', None, [call("time")], id="bare"),
        pytest.param(
            '[TOOL_CALLS][{"name": "time", "arguments": {}}]', None, [call("time")], id="mistral"
        ),
        pytest.param(
            '{"function": {"name": "time", "arguments": "{\\"a\\": 1}"}}', None, [call("time", a=1)]
        ),
    ],
)
def test_calls_are_parsed(text: str, content: str | None, calls: list[dict[str, Any]]) -> None:
    message = read(text)
    assert (message["content"], message["tool_calls"]) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{broken}</tool_call> and more",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        "<tool_call> never closed",
        '{"answer": 42}',
        "{not json",
        "[TOOL_CALLS] nothing",
    ],
)
def test_text_that_is_not_a_call_is_content(text: str) -> None:
    message = read(text)
    assert message["content"] == text
    assert "tool_calls" not in message


def test_calls_are_content_without_tools() -> None:
    assert read(CALL, tools=Tools())["content"] == CALL


def test_only_one_call_without_parallel_tool_calls() -> None:
    tools = read_tools({"tools": [WEATHER, TIME], "parallel_tool_calls": False})
    message = read(f"{CALL}{TIME_CALL}", tools=tools)
    assert message["tool_calls"] == [call("weather", city="Köln")]


def test_reasoning_is_separated_from_content() -> None:
    message = read("<think>\nHm, <b>\n</think>\n\nYes.")
    assert (message["reasoning_content"], message["content"]) == ("Hm, <b>\n", "Yes.")


def test_reasoning_opened_by_the_template() -> None:
    message = read("Hm.</think>Yes.", starts_in_reasoning=True)
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


def test_reasoning_without_an_end() -> None:
    message = read("<think>Hm.")
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "")


def test_text_is_returned_immediately() -> None:
    reply = ReplyParser(TOOLS)
    assert reply.push("Hello") == [{"content": "Hello"}]
    assert reply.push(" there <tool") == [{"content": " there"}]
    assert reply.push("s>") == [{"content": " <tools>"}]


_PARTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<", "\n", " ", "x"]
_PARTS += ['{"name": "time", "arguments": {}}', "{", "}", "é😀"]


@given(st.lists(st.sampled_from(_PARTS), max_size=12).map("".join), st.data())
def test_result_does_not_depend_on_the_split(text: str, data: st.DataObject) -> None:
    # R11, R24
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(*pieces) == read(text)
    assert read(*text) == read(text)

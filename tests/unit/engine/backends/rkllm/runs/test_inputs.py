"""The runtime's input without a tokenizer."""

from __future__ import annotations

import pytest

from engine.backends.rkllm.runs.inputs import join_turns
from engine.request import Chat, Message


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ([("user", " as it is\n")], " as it is\n"),
        ([("system", "S")], "S"),
        ([("system", "S"), ("user", "U")], "System: S\n\nUser: U\n\nAssistant:"),
        ([("developer", "D"), ("user", "")], "System: D\n\nUser: \n\nAssistant:"),
        ([("user", "a"), ("assistant", "b")], "User: a\n\nAssistant: b\n\nAssistant:"),
    ],
)
def test_conversation_is_joined_to_one_turn(turns: list[tuple[str, str]], text: str) -> None:
    # R38: no turn is dropped.
    assert join_turns(Chat(tuple(Message(*turn) for turn in turns))) == text


def test_tool_calls_and_results_are_joined_as_text() -> None:
    # R38: no turn is dropped.
    call = {"id": "1", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    chat = Chat(
        (
            Message("user", "Weather?"),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "3 degrees"),
        )
    )
    text = join_turns(chat)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<tool_response>\n3 degrees\n</tool_response>" in text
    assert "<tools>" not in text

"""Truncated conversations: complete turns are removed, oldest first, and instructions stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine import Message
from handler.apis.core.truncation import drop_oldest_turns

_MESSAGES = st.lists(
    st.builds(
        Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=20)
    ),
    max_size=12,
)


def turn(number: int, size: int = 10) -> list[Message]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        Message("user", f"{number}" * size),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "x", tool_call_id="c"),
    ]


def test_dropped_turns_are_proportional_to_the_excess() -> None:
    instructions = Message("system", "be brief")
    messages = [instructions, *(message for n in range(8) for message in turn(n))]
    half = drop_oldest_turns(messages, 1_000, 500)
    assert half == [instructions, *(message for n in range(5, 8) for message in turn(n))]
    assert drop_oldest_turns(messages, 1_001, 1_000)[1:] == messages[4:]


@given(_MESSAGES, st.integers(1, 10_000), st.integers(1, 10_000))
def test_rest_is_all_instructions_and_the_last_complete_turns(
    messages: list[Message], tokens: int, limit: int
) -> None:
    kept = drop_oldest_turns(messages, tokens, limit)
    turns = [message for message in messages if message.role != "system"]
    rest = [message for message in kept if message.role != "system"]
    assert [m for m in kept if m.role == "system"] == [m for m in messages if m.role == "system"]
    assert rest == turns[len(turns) - len(rest) :]
    starts = sum(message.role == "user" for message in turns[1:])
    if starts:
        assert len(rest) < len(turns)
        assert rest[0].role == "user"
    else:
        assert kept == messages

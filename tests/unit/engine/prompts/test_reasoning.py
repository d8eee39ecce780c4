"""Prompts that end with the beginning of an answer, and the marks of reasoning in them."""

from __future__ import annotations

import pytest

from engine.prompts.reasoning import continue_last, leaves_reasoning_open, starts_in_reasoning
from engine.request import Chat, Message


def render_as(ending: str, chat: Chat) -> str:
    assert not chat.continues_last
    return "".join(f"{each.role}: {each.content}\n" for each in chat.messages) + ending


@pytest.mark.parametrize(
    ("ending", "content", "expected"),
    [
        ("assistant: ", "Once", "assistant: Once"),
        # A template that turns reasoning off.
        ("<think>\n\n</think>\n\n", "Once", "<think>\n\n</think>\n\nOnce"),
        # Templates that open it.
        ("<think>\n", "Once", "<think>\n</think>\n\nOnce"),
        ("[THINK]", "Once", "[THINK][/THINK]\n\nOnce"),
        ("<think>\n", "<think>\nHm", "<think>\nHm"),
        ("<think>\n", "Hm</think>Once", "<think>\nHm</think>Once"),
    ],
)
def test_continue_last_ends_the_prompt_with_the_answers_beginning(
    ending: str, content: str, expected: str
) -> None:
    turns = (Message("user", "a"), Message("assistant", content))
    prompt = continue_last(Chat(turns, continues_last=True), lambda chat: render_as(ending, chat))
    assert prompt == "user: a\n" + expected


def test_continue_last_leaves_other_chats_as_they_are() -> None:
    chat = Chat((Message("user", "a"), Message("assistant", "b")))
    assert continue_last(chat, lambda chat: render_as("!", chat)) == "user: a\nassistant: b\n!"


def test_leaves_reasoning_open_compares_the_last_marks() -> None:
    assert leaves_reasoning_open("<think>hm")
    assert leaves_reasoning_open("<think>a</think>b<think>")
    assert not leaves_reasoning_open("<think>a</think>b")
    assert not leaves_reasoning_open("")
    assert not starts_in_reasoning("<think>hm")

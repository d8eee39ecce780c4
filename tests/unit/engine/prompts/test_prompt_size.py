"""Prompts that cannot fit are refused by their lengths, or after a bounded number of tokens."""

from __future__ import annotations

import pytest

from engine.errors import PromptTooLong
from engine.prompts.prompt_size import (
    MAX_TOKEN_BYTES,
    check_size,
    check_tokens,
    tokenize_end,
)
from engine.request import Chat, Message, Prompt

CONTEXT = 100


def chat(*contents: str) -> Chat:
    return Chat(tuple(Message("user", content) for content in contents))


def tool(description: str) -> Chat:
    function = {"name": "f", "description": description, "parameters": {}}
    return Chat((Message("user", "x"),), tools=({"type": "function", "function": function},))


def called(arguments: str) -> Chat:
    call = {"id": "", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return Chat((Message("assistant", "", tool_calls=(call,)),))


LONGEST = "x" * (CONTEXT * MAX_TOKEN_BYTES)


@pytest.mark.parametrize(
    "prompt",
    [
        LONGEST + "x",
        (1,) * (CONTEXT + 1),
        chat(LONGEST, "x"),
        chat(*["x" * MAX_TOKEN_BYTES] * (CONTEXT + 1)),
        tool(LONGEST),
        called(LONGEST + "x"),
    ],
    ids=["text", "token ids", "last message", "many messages", "tool", "call"],
)
def test_prompt_that_cannot_fit_is_refused_by_its_length(prompt: Prompt) -> None:
    with pytest.raises(PromptTooLong, match="do not fit the context of 100 tokens") as refused:
        check_size(prompt, CONTEXT)
    assert refused.value.details["context_length"] == CONTEXT
    prompt_tokens = refused.value.details["prompt_tokens"]
    assert isinstance(prompt_tokens, int)
    assert prompt_tokens >= CONTEXT
    # Without a known context length, no prompt is refused.
    check_size(prompt, 0)


@pytest.mark.parametrize("prompt", [LONGEST, (1,) * CONTEXT, chat(LONGEST), "", ()])
def test_prompt_that_may_fit_is_accepted(prompt: Prompt) -> None:
    check_size(prompt, CONTEXT)


def test_error_names_the_field_of_other_inputs() -> None:
    with pytest.raises(PromptTooLong, match=r"^input: 101 tokens") as refused:
        check_size((1,) * 101, CONTEXT, "input")
    assert refused.value.details["param"] == "input"


def test_long_text_is_tokenized_only_until_it_does_not_fit() -> None:
    read: list[int] = []

    def tokenize(text: str) -> list[int]:
        read.append(len(text))
        return [1] * (len(text) // 4)

    with pytest.raises(PromptTooLong, match="more than 16256 tokens do not fit"):
        check_tokens("x" * 10_000_000, 10_000, tokenize)
    assert sum(read) < 100_000
    assert max(read) < 50_000
    read.clear()
    check_tokens("x" * 65_000, 10, tokenize)
    assert not read
    check_tokens("x" * 100_000, 30_000, tokenize)
    assert sum(read) == 100_000


@pytest.mark.parametrize("text", ["a b c", "word " * 1000, "x" * 100_000 + " a b c"])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_tokenize_end_returns_the_last_tokens_of_the_text(text: str, count: int) -> None:
    words = {word: number for number, word in enumerate(dict.fromkeys(text.split()))}

    def tokenize(part: str) -> list[int]:
        return [words.get(word, -1) for word in part.split()]

    assert tokenize_end(text, count, tokenize) == tokenize(text)[-count:]


def test_tokenize_end_reads_only_the_end_of_a_long_text() -> None:
    lengths: list[int] = []

    def tokenize(part: str) -> list[int]:
        lengths.append(len(part))
        return [0] * (len(part) // 4)

    assert len(tokenize_end("x" * 1_000_000, 100, tokenize)) == 100
    assert sum(lengths) < 2_000

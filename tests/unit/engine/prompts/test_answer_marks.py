"""The marks in answers that are one token of a model."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from engine.prompts.answer_marks import find_answer_marks


@pytest.mark.parametrize(
    ("special", "preserved"),
    [
        (["<|im_start|>", "<|im_end|>"], []),
        (["<think>", "</think>", "<tool_call>"], ["<think>", "</think>", "<tool_call>"]),
        (
            ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "</s>"],
            ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"],
        ),
        (
            ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<turn|>"],
            ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"],
        ),
        # Of Phi, which ends its answers with it.
        (["<|end|>", "<|assistant|>"], []),
        (
            ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"],
            ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
        ),
    ],
)
def test_marks_that_are_one_token_are_preserved(
    special: Collection[str], preserved: list[str]
) -> None:
    def tokenize(text: str) -> list[int]:
        return [1] if text in special else [ord(char) for char in text]

    assert sorted(find_answer_marks(tokenize)) == sorted(preserved)

"""The marks in answers: special tokens that are read as text, because they have a meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.prompts.reasoning import REASONING_MARKS

# The marks of tool calls, and of the parts of an answer in harmony. An end token of a family is no
# mark, because llama.cpp would write it after the answer.
_CALL_MARKS = (
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    *("<tool_call>", "</tool_call>", "<|tool_call>", "<tool_call|>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    *(
        f"<\uff5ctool\u2581{name}\uff5c>"
        for name in (
            *("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end"),
            "sep",
        )
    ),
)
_HARMONY_END = "<|end|>"
_HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", _HARMONY_END)
# Only a model of this form has it. In others `<|end|>` ends the answer.
_HARMONY_RETURN = "<|return|>"


def find_answer_marks(tokenize: Callable[[str], Sequence[int]]) -> tuple[str, ...]:
    """Return the marks that are one token of the model; `tokenize` parses special tokens.

    llama.cpp leaves special tokens out of the text, and the readers of answers need the marks. The
    turns of the assistant in a prompt may have them too.
    """
    marks = {*REASONING_MARKS, *REASONING_MARKS.values(), *_CALL_MARKS} - {_HARMONY_END}
    if len(tokenize(_HARMONY_RETURN)) == 1:
        marks.update(_HARMONY_MARKS)
    # The first part of `<|channel>thought` is a token of its own.
    marks |= {mark.partition(">")[0] + ">" for mark in marks if ">" in mark}
    return tuple(sorted(mark for mark in marks if len(tokenize(mark)) == 1))

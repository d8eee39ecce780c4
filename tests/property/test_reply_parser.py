"""A model's output, split anywhere: the reply is the same, no mark leaks, no text is lost."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reply.parser import ReplyParser
from engine.reply.reply import Reply
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat
from tests.written_calls import FUNCTIONS, WRITERS

FORMAT = ReplyFormat(functions=FUNCTIONS)
SPLITS = 25
CALLS: Sequence[Sequence[tuple[str, dict[str, Any]]]] = (
    [("weather", {"city": "Köln", "days": 3})],
    [("time", {})],
    [("weather_at", {"text": 'say "no" \\ {[(\n</p>', "places": [1, "b", None]}), ("time", {})],
    [("weather", {"limits": {"a": {"b": [True, {}]}}}), ("weather", {"city": "東京 😀"})],
)
AROUND = (
    ("", "", ""),
    ("<think>\nI could <call> it, {maybe}.\n</think>\n\n", "", ""),
    ("<think>Hm.</think>", "Let me see: ", " That is [all]."),
)
# 21 forms, 4 lists of calls, 3 surroundings.
OUTPUTS = tuple(itertools.product(WRITERS, range(len(CALLS)), range(len(AROUND))))


def parse(pieces: Sequence[str], reply_format: ReplyFormat = FORMAT) -> Reply:
    parser = ReplyParser(reply_format)
    for piece in pieces:
        parser.push(piece)
    parser.close()
    return parser.reply()


def summary(reply: Reply) -> tuple[Any, ...]:
    calls = [(call.name, call.arguments) for call in reply.calls]
    return reply.reasoning, reply.text, calls, reply.output_span(0, len(reply.text))


def cut(text: str, places: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in itertools.pairwise([0, *sorted(places), len(text)])]


@pytest.mark.parametrize("form", WRITERS)
def test_calls_and_reasoning_do_not_depend_on_the_split(form: str, scale: int) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for calls, (reasoning, before, after) in itertools.product(CALLS, AROUND):
        output = reasoning + before + WRITERS[form][1](calls) + after
        unsplit = parse([output])
        assert [(call.name, json.loads(call.arguments)) for call in unsplit.calls] == list(calls)
        assert unsplit.text.split() == (before + after).split()
        assert unsplit.reasoning.strip() == reasoning[7:].partition("</think>")[0].strip()
        for _ in range(SPLITS * scale):
            places = [rng.randrange(len(output) + 1) for _ in range(rng.randrange(1, 8))]
            assert summary(parse(cut(output, places))) == summary(unsplit), (seed, places)


FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```json"),
    *("```", "<function=", "time>", "</function>", "<parameter=", "a>", "</parameter>", "call:"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|python_tag|>", "functools", "time", "weather"),
    *("{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ";", ":", "=", "<", "\n", " ", "x", "1"),
    *('{"name": "time", "arguments": {}}', '"name": ', '"arguments": ', '"time"', "é😀"),
    *("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>commentary to=functions."),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join), st.data())
def test_result_does_not_depend_on_the_split(output: str, data: st.DataObject) -> None:
    # R11, R24
    places = data.draw(st.lists(st.integers(0, len(output)), max_size=6))
    for reply_format in (FORMAT, REASONING_ONLY):
        unsplit = parse([output], reply_format)
        assert summary(parse(cut(output, places), reply_format)) == summary(unsplit)
        assert summary(parse(list(output), reply_format)) == summary(unsplit)
        if not unsplit.calls and not unsplit.reasoning and "<|channel|>" not in output:
            text = output.lstrip().removeprefix("<think>").lstrip()
            assert unsplit.text.endswith(text.removeprefix("</think>").lstrip())


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fragment",
    [
        '{"id":',
        '{"name": "time", "id": [',
        "[time(a=",
        "<tool_call>{",
        "[[",
        "```json\n{",
        '{"id": "',
        "[ ",
        "[<",
        "{<",
        "<|tool_call>call:time{a:[",
        '[TOOL_CALLS]time[ARGS]{"a":1,' + 50 * " ",
        "[time(a=" + 20 * "[1,",
    ],
)
def test_time_to_read_is_linear_in_the_output(fragment: str) -> None:
    for pieces in ([fragment] * 6_000, [fragment * 3_000]):
        parser = ReplyParser(FORMAT)
        for piece in pieces:
            parser.push(piece)
        parser.close()
    reply = parser.reply()
    assert reply.text or reply.calls


def test_long_values_do_not_depend_on_the_split() -> None:
    for output in (
        f"<|tool_call>call:time{{a:{'x' * 30_000},b:1}}",
        f"<|tool_call>call:time{{a:1,{' ' * 30_000}b:1}}",
        f'[TOOL_CALLS]time[ARGS]{{"a":1,{" " * 30_000}"b":1}}',
        f"[time(a=[{'1,' * 15_000}], b=1)]",
    ):
        unsplit = parse([output])
        assert [call.name for call in unsplit.calls] == ["time"]
        assert json.loads(unsplit.calls[0].arguments)["b"] == 1
        pieces = [output[start : start + 4] for start in range(0, len(output), 4)]
        assert summary(parse(pieces)) == summary(unsplit)

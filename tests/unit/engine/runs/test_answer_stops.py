"""R78: stop strings count in the text of an answer, not in its reasoning and calls."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import pytest

from engine.request import StopScope
from engine.runs.answer_stops import AnswerStopMatcher
from engine.runs.stops import StopMatcher
from tests.written_calls import FUNCTIONS, WRITERS

ANY_SCOPE = StopScope()
CALLS = [("weather", {"city": "END of it", "days": 3}), ("time", {})]


def split(output: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randrange(len(output) + 1) for _ in range(8))
    ends = [0, *places, len(output)]
    return [output[start:end] for start, end in itertools.pairwise(ends)]


def cut(
    pieces: Sequence[str],
    stops: Sequence[str],
    scope: StopScope = ANY_SCOPE,
    *,
    include: bool = False,
) -> tuple[str, str | None]:
    """Return the output up to the stop string, and the stop string."""
    matcher = AnswerStopMatcher(StopMatcher(stops, include_stop_str=include), scope)
    output = ""
    for piece in pieces:
        output += matcher.push(piece)
        if matcher.matched is not None:
            return output, matcher.matched
    return output + matcher.flush(), matcher.matched


@pytest.mark.parametrize(
    ("output", "stop", "expected"),
    [
        ("<think>is it 9.8?</think>9.8 indeed", "9.8", "<think>is it 9.8?</think>"),
        ("<think>\n\n</think>\n\nYes.\n\nNo.", "\n\n", "<think>\n\n</think>\n\nYes."),
        ("  <think>a</think>b</think>c", "</think>", "  <think>a</think>b"),
        ("[THINK]stop[/THINK]go stop", "stop", "[THINK]stop[/THINK]go "),
        (
            "<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>"
            "a END",
            "END",
            "<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>"
            "a ",
        ),
        ("no thought, END.", "END", "no thought, "),
        ("a <think>END</think>", "END", "a <think>"),
    ],
)
def test_stop_string_counts_after_the_reasoning(output: str, stop: str, expected: str) -> None:
    rng = random.Random(1)
    assert cut([output], [stop]) == (expected, stop)
    assert cut(list(output), [stop]) == (expected, stop)
    for _ in range(20):
        assert cut(split(output, rng), [stop]) == (expected, stop)


def test_stop_string_does_not_count_in_reasoning_that_never_ends() -> None:
    assert cut(["<think>a END b", " END"], ["END"]) == ("<think>a END b END", None)


def test_stop_string_does_not_count_in_reasoning_that_the_prompt_has_opened() -> None:
    scope = StopScope(starts_in_reasoning=True)
    assert cut(["a END b</th", "ink>\n\nc END"], ["END"], scope) == ("a END b</think>\n\nc ", "END")


def test_kept_stop_string_ends_the_output() -> None:
    assert cut(["<think>E</think>a", "E b"], ["E"], include=True) == ("<think>E</think>aE", "E")


@pytest.mark.parametrize("form", WRITERS)
def test_stop_string_does_not_count_in_calls(form: str) -> None:
    # In each form of the families; the text around the calls has the stop string too.
    scope, rng = StopScope(functions=tuple(FUNCTIONS)), random.Random(2)
    output = WRITERS[form][1](CALLS)
    for pieces in ([output], list(output), *(split(output, rng) for _ in range(10))):
        assert cut(pieces, ["END", "city", '"', "<", "\n"], scope) == (output, None)
    before = f"Let me see END {output}"
    assert cut(list(before), ["END"], scope) == ("Let me see ", "END")


def test_stop_string_counts_in_text_that_resembles_a_call() -> None:
    scope = StopScope(functions=("time",))
    text = json.dumps({"name": "unknown", "arguments": {"a": "END"}})
    for pieces in ([text], list(text)):
        assert cut(pieces, ["END"], scope) == ('{"name": "unknown", "arguments": {"a": "', "END")


def test_white_space_that_may_come_before_a_call_is_matched_at_the_end() -> None:
    scope = StopScope(functions=("time",))
    assert cut(["Hello\n", "\n"], ["\n\n"], scope) == ("Hello", "\n\n")


def test_stop_string_does_not_continue_after_a_call() -> None:
    scope = StopScope(functions=("time",))
    output = 'a E<tool_call>{"name": "time", "arguments": {}}</tool_call>ND b END'
    assert cut(list(output), ["END"], scope) == (output.removesuffix("END"), "END")


def test_output_is_returned_immediately_where_no_stop_string_can_be() -> None:
    matcher = AnswerStopMatcher(StopMatcher(["END"]), StopScope(functions=("time",)))
    pieces = ["<think>", "a E", "</think>", "b", " E", "x"]
    assert [matcher.push(piece) for piece in pieces] == [
        *("<think>", "a E", "</think>", "b", " ", "Ex"),
    ]

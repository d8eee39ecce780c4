"""Verdicts by what a client printed, its exit code and the shape."""

from __future__ import annotations

import json

import pytest

from emulator.torture.answer import ANSWER, ARGUMENTS, is_part_of, is_same_answer
from emulator.torture.shape import Expected, Shape
from emulator.torture.verdict import ClientRun, Verdict, judge

HALF = ANSWER[: len(ANSWER) // 2]


def shape(expected: Expected, *, has_text: bool = True) -> Shape:
    return Shape(name="x", faults=(), expected=expected, reason="R.", rule="R.", has_text=has_text)


def run(printed: str, exit_code: int | None = 0) -> ClientRun:
    return ClientRun(printed=printed, errors="", exit_code=exit_code, duration_s=1, requests=1)


@pytest.mark.parametrize(
    ("expected", "printed", "exit_code", "verdict"),
    [
        (Expected.ANSWER, ANSWER, 0, Verdict.RIGHT),
        (Expected.ANSWER, ANSWER + "\n", 0, Verdict.RIGHT),
        (Expected.ANSWER, HALF, 0, Verdict.LOST_TEXT),
        (Expected.ANSWER, ANSWER[5:], 0, Verdict.LOST_TEXT),
        (Expected.ANSWER, ANSWER[:9] + ANSWER[20:], 0, Verdict.LOST_TEXT),
        (Expected.ANSWER, "", 0, Verdict.LOST_TEXT),
        (Expected.ANSWER, ANSWER + ANSWER, 0, Verdict.INVENTED_TEXT),
        (Expected.ANSWER, ANSWER, 1, Verdict.CRASHED),
        (Expected.ANSWER, ANSWER, -11, Verdict.CRASHED),
        (Expected.FAILURE, HALF, 128 + 11, Verdict.CRASHED),
        (Expected.EITHER, "", 128 + 6, Verdict.CRASHED),
        (Expected.FAILURE, HALF, 130, Verdict.RIGHT),
        (Expected.ANSWER, ANSWER, None, Verdict.HUNG),
        (Expected.FAILURE, HALF, 1, Verdict.RIGHT),
        (Expected.FAILURE, "", 70, Verdict.RIGHT),
        (Expected.FAILURE, "Error: no", 1, Verdict.RIGHT),
        (Expected.FAILURE, HALF, 0, Verdict.HALF_ANSWER),
        (Expected.FAILURE, ANSWER, 0, Verdict.HALF_ANSWER),
        (Expected.FAILURE, "", 0, Verdict.HALF_ANSWER),
        (Expected.FAILURE, "<html>", 0, Verdict.INVENTED_TEXT),
        (Expected.FAILURE, HALF, -6, Verdict.CRASHED),
        (Expected.EITHER, ANSWER, 0, Verdict.RIGHT),
        (Expected.EITHER, HALF, 2, Verdict.RIGHT),
        (Expected.EITHER, HALF, 0, Verdict.HALF_ANSWER),
        (Expected.EITHER, "null" + ANSWER, 0, Verdict.INVENTED_TEXT),
        (Expected.EITHER, HALF + ANSWER, 0, Verdict.INVENTED_TEXT),
    ],
)
def test_verdict_is_that_of_an_honest_client(
    expected: Expected, printed: str, exit_code: int | None, verdict: Verdict
) -> None:
    assert judge(shape(expected), run(printed, exit_code), ANSWER).verdict is verdict


def test_answer_without_text_is_an_answer() -> None:
    empty = shape(Expected.EITHER, has_text=False)
    assert judge(empty, run(""), ANSWER).is_right
    assert judge(empty, run("None"), ANSWER).verdict is Verdict.INVENTED_TEXT


def test_arguments_of_a_call_count_by_their_value() -> None:
    written = json.dumps(json.loads(ARGUMENTS), indent=1, sort_keys=True)
    assert is_same_answer(written, ARGUMENTS, is_call=True)
    assert not is_same_answer(written, ARGUMENTS, is_call=False)
    assert not is_same_answer("{}", ARGUMENTS, is_call=True)
    assert not is_same_answer("[1]", ARGUMENTS, is_call=True)
    half = judge(shape(Expected.FAILURE), run(ARGUMENTS[:20]), ARGUMENTS, is_call=True)
    assert half.verdict is Verdict.HALF_ANSWER


def test_part_of_an_answer_keeps_its_order() -> None:
    assert is_part_of("ace", "abcde")
    assert not is_part_of("eca", "abcde")
    assert not is_part_of("aa", "abcde")


def test_detail_has_the_size_of_the_text() -> None:
    detail = judge(shape(Expected.FAILURE), run(ANSWER[:3]), ANSWER).detail
    assert detail == f"it succeeded on a broken answer, and printed 3 of {len(ANSWER)} characters"

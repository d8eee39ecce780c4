"""One run from pieces to deltas: limits, stops, counting, and late pieces."""

from __future__ import annotations

import pytest

from engine.backends.base import RunResult
from engine.output import Delta, FinishReason, TokenLogprob, Usage
from engine.request import SamplingParams, StopScope
from engine.runs.generation import Generation

ENDED = RunResult(prompt_tokens=7, completion_tokens=99, cached_tokens=3, prefill_ms=12.5)


class Run:
    """A generation and what it emitted."""

    def __init__(self, **sampling: object) -> None:
        self.deltas: list[Delta] = []
        self.generation = Generation(SamplingParams(**sampling), self.deltas.append)  # type: ignore[arg-type]

    def feed(self, *pieces: str | bytes, first_id: int = 1) -> list[bool]:
        return [
            self.generation.on_piece(
                piece.encode() if isinstance(piece, str) else piece, first_id + index, None
            )
            for index, piece in enumerate(pieces)
        ]

    @property
    def texts(self) -> list[str]:
        return [delta.text for delta in self.deltas]


def test_every_piece_is_a_delta() -> None:
    run = Run()
    assert run.feed("a", "b", "c") == [False, False, False]
    assert run.texts == ["a", "b", "c"]


def test_max_tokens_is_exact_and_ends_by_length() -> None:
    # R8
    run = Run(max_tokens=2)
    assert run.feed("a", "b", "c") == [False, True, True]
    assert run.texts == ["a", "b"]
    finish = run.generation.finish(ENDED)
    assert finish.reason is FinishReason.LENGTH
    assert finish.stop_reason is None
    assert finish.usage == Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3)


def test_pieces_without_text_count_as_tokens() -> None:
    # R4, R8: the bytes of one character may be several tokens.
    run = Run(max_tokens=4)
    assert run.feed(*[bytes([byte]) for byte in "😀".encode()]) == [False, False, False, True]
    assert run.texts == ["", "", "", "😀"]


def test_pieces_without_bytes_count_as_tokens() -> None:
    # R4: llama.cpp reports so the tokens of a character that is not complete yet.
    run = Run(max_tokens=3)
    assert run.feed(b"", "", "a") == [False, False, True]
    assert run.generation.finish(ENDED).usage.completion_tokens == 3


def test_limit_in_the_middle_of_a_character_drops_the_half() -> None:
    # R27
    run = Run(max_tokens=2)
    run.feed("a", "😀".encode()[:2])
    run.generation.finish(ENDED)
    assert "".join(run.texts) == "a"


def test_limit_releases_held_back_text() -> None:
    # R26
    run = Run(max_tokens=2, stop=("END",))
    run.feed("x", "EN")
    assert "".join(run.texts) == "xEN"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [(["one EN", "D two"], "one "), (["one END two"], "one "), (["END"], "")],
    ids=["across", "inside", "alone"],
)
def test_stop_string_ends_the_run_and_is_named(pieces: list[str], text: str) -> None:
    # R11
    run = Run(stop=("zzz", "END"))
    assert run.feed(*pieces)[-1] is True
    finish = run.generation.finish(ENDED)
    assert "".join(run.texts) == text
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, "END")
    assert finish.usage.completion_tokens == len(pieces)


def test_stop_string_is_kept_on_request_without_the_text_after_it() -> None:
    # R12
    run = Run(stop=("END",), include_stop_str_in_output=True)
    run.feed("one EN", "D two")
    assert "".join(run.texts) == "one END"


def test_stop_string_in_the_last_allowed_token_ends_by_stop() -> None:
    run = Run(stop=("END",), max_tokens=2)
    run.feed("a", "END")
    assert run.generation.finish(ENDED).reason is FinishReason.STOP


def test_stop_token_ends_the_run_without_its_text() -> None:
    run = Run(stop_token_ids=(3,))
    assert run.feed("a", "b", "c", "d") == [False, False, True, True]
    finish = run.generation.finish(ENDED)
    assert run.texts == ["a", "b"]
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, 3)
    assert finish.usage.completion_tokens == 3


def test_stop_token_releases_held_back_text() -> None:
    # R26
    run = Run(stop=("END",), stop_token_ids=(2,))
    run.feed("one EN", "x")
    assert "".join(run.texts) == "one EN"


def test_end_by_the_backend_uses_the_backends_count() -> None:
    # R4: its count includes the end-of-sequence token, which has no piece.
    run = Run()
    run.feed("a", "b")
    finish = run.generation.finish(ENDED)
    assert finish.usage.completion_tokens == 99
    assert finish.timings.prefill_ms == 12.5
    assert finish.stop_reason is None


def test_pieces_are_counted_for_a_backend_without_a_count() -> None:
    run = Run()
    run.feed("a", "b")
    assert run.generation.finish(RunResult(prompt_tokens=1)).usage.completion_tokens == 2


def test_end_by_the_backend_keeps_its_reason_and_releases_held_back_text() -> None:
    # R26
    run = Run(stop=("END",))
    run.feed("one E")
    finish = run.generation.finish(RunResult(reason=FinishReason.LENGTH))
    assert finish.reason is FinishReason.LENGTH
    assert run.texts == ["one ", "E"]


def test_pieces_after_the_end_are_ignored() -> None:
    # R26, R31
    run = Run(max_tokens=1, stop=("END",))
    run.feed("a")
    assert run.feed("b", "END") == [True, True]
    assert run.texts == ["a"]
    assert run.generation.stop_reason is None


def test_pieces_after_a_cancel_are_ignored() -> None:
    # R31
    run = Run(stop=("END",))
    run.feed("a EN")
    run.generation.cancel()
    assert run.feed("D", "b") == [True, True]
    run.generation.finish(ENDED)
    assert run.texts == ["a "]


@pytest.mark.parametrize(
    ("sampling", "own_end"),
    [
        ({}, False),
        ({"max_tokens": 1}, True),
        ({"stop": ("a",)}, True),
        ({"stop_token_ids": (1,)}, True),
    ],
)
def test_is_cancelled_only_before_the_end(sampling: dict[str, object], own_end: bool) -> None:
    """A finished answer is reported as finished, even if its client leaves a moment later."""
    run = Run(**sampling)
    run.feed("a")
    assert not run.generation.is_cancelled
    run.generation.cancel()
    assert run.generation.is_cancelled is not own_end


def test_logprobs_have_their_offset_in_the_text() -> None:
    # R13
    run = Run(logprobs=1, stop=("bcx",))
    top = (("a", -0.25), ("b", -1.5))
    for piece in (b"a", "é".encode()[:1], "é".encode()[1:], b"b", b"cd"):
        run.generation.on_piece(piece, 1, TokenLogprob("?", -0.25, top))
    assert [(delta.text, delta.logprob) for delta in run.deltas] == [
        ("a", TokenLogprob("?", -0.25, top, b"a", 0)),
        ("", TokenLogprob("?", -0.25, top, b"\xc3", 1)),
        ("é", TokenLogprob("?", -0.25, top, b"\xa9", 1)),
        # Held back as a possible stop string, and still with the right offset.
        ("", TokenLogprob("?", -0.25, top, b"b", 2)),
        ("bcd", TokenLogprob("?", -0.25, top, b"cd", 3)),
    ]


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="stop string"):
        Run(stop=("",))


def test_nothing_ends_the_answer_before_min_tokens() -> None:
    run = Run(min_tokens=3, stop=("b",), stop_token_ids=(2,))
    assert run.feed("a", "b", "b", "c", "b") == [False, False, False, False, True]
    assert "".join(run.texts) == "abbc"
    finish = run.generation.finish(ENDED)
    assert (finish.stop_reason, finish.usage.completion_tokens) == ("b", 5)


def test_stop_token_ends_the_answer_after_min_tokens() -> None:
    run = Run(min_tokens=1, stop_token_ids=(1, 3))
    assert run.feed("a", "b", "c") == [False, False, True]
    assert run.generation.finish(ENDED).stop_reason == 3


def test_stop_string_across_the_end_of_min_tokens_ends_the_run() -> None:
    run = Run(stop=("-digit n",), min_tokens=1)
    run.feed("three", "-", "digit", " n", "umber")
    assert "".join(run.texts) == "three"
    assert run.generation.stop_reason == "-digit n"
    run = Run(stop=("two three",), min_tokens=2)
    run.feed("one", " two", " three", " four")
    assert "".join(run.texts) == "one "


def test_stop_string_that_ends_within_min_tokens_does_not_count() -> None:
    run = Run(stop=("two", "a a"), min_tokens=3)
    run.feed("one", " two", " a", " a", " b")
    assert "".join(run.texts) == "one two "
    assert run.generation.stop_reason == "a a"


def test_stop_string_of_the_answer_does_not_end_its_reasoning() -> None:
    # R78
    run = Run(stop=("9.8",), stop_scope=StopScope())
    assert run.feed("<think>", "is it 9.8?", "</think>", "9", ".", "8", " indeed")[-2:] == [1, 1]
    assert "".join(run.texts) == "<think>is it 9.8?</think>"
    assert run.generation.finish(ENDED).usage.completion_tokens == 6


def test_stop_string_in_held_back_text_is_the_reason_of_the_end() -> None:
    # White space at the end may come before a call, so it is decided at the end.
    run = Run(stop=("\n",), stop_scope=StopScope(functions=("time",)))
    run.feed("Hello", "\n")
    finish = run.generation.finish(ENDED)
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, "\n")
    assert "".join(run.texts) == "Hello"

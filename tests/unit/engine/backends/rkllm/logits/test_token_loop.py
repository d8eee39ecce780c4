"""The token loop over a fake runtime that records its calls."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engine.backends.base import RunResult
from engine.backends.rkllm.abi.structs import RKLLMResult, RKLLMResultLogits
from engine.backends.rkllm.logits.grammar import GrammarCompiler
from engine.backends.rkllm.logits.token_loop import PREFILL_CHUNK_TOKENS, LastLogits, TokenLoop
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed, RequestRejected
from engine.output import FinishReason
from engine.prompts.reasoning import Thinking
from engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0)
WORDS = cast(
    "Vocabulary",
    SimpleNamespace(
        size=3,
        end_tokens={2},
        piece=lambda token: b"ab"[token : token + 1],
        text=lambda token: "ab"[token],
    ),
)


class FakeGrammar:
    """A fake grammar: the first token of a text forces the others; an empty one allows all."""

    def __init__(self, *words: list[int]) -> None:
        self._forced_texts = list(words)
        self.calls: list[bool] = []
        self.thinking: Thinking = "none"

    def build_constraint(self, sampling: SamplingParams, thinking: Thinking) -> FakeGrammar | None:
        self.thinking = thinking
        return self if self._forced_texts else None

    def allowed_tokens(self) -> Any:
        mask = np.zeros(3, np.bool_)
        mask[self._forced_texts[0][:1] or [0, 1, 2]] = True
        return mask

    def advance(self, token: int, *, fast_forward: bool) -> list[int]:
        self.calls.append(fast_forward)
        text = self._forced_texts.pop(0)
        assert not text or token == text[0]
        if not fast_forward and text[1:]:
            self._forced_texts.insert(0, text[1:])
        return text[1:] if fast_forward else []

    @property
    def is_complete(self) -> bool:
        return not self._forced_texts


def result(rows: list[list[float]]) -> RKLLMResult:
    """Return a callback's result, which keeps its memory alive."""
    numbers = [number for row in rows for number in row]
    memory = (ctypes.c_float * len(numbers))(*numbers)
    pointer = ctypes.cast(memory, ctypes.POINTER(ctypes.c_float))
    return RKLLMResult(logits=RKLLMResultLogits(pointer, len(rows[0]), len(rows)))


class FakeRuntime:
    """A fake runtime that returns these rows of logits in order and records its calls."""

    def __init__(self, *rows: list[float]) -> None:
        self._rows = list(rows)
        self.clear_works = True
        self.is_stopped = False
        self.on_compute: Callable[[], None] = lambda: None
        self.calls: list[Any] = []

    def clear_cache(self) -> bool:
        self.calls.append("forget")
        return self.clear_works

    def compute(
        self,
        tokens: list[int],
        mode: int,
        take: Callable[[Any], None],
        *,
        keep_history: bool,
        lora: Any,
    ) -> Any:
        assert keep_history
        self.calls.append(tokens)
        self.on_compute()
        if not self.is_stopped:
            take(result([self._rows.pop(0)]))
        return SimpleNamespace(stopped=self.is_stopped)


def run(
    runtime: FakeRuntime,
    *,
    stop_after: int = 0,
    sampling: SamplingParams = GREEDY,
    prompt: Sequence[int] = (0, 1),
    aborted: threading.Event | None = None,
    grammar: FakeGrammar | None = None,
    context_length: int = 1024,
    on_result: Callable[[RunResult], None] = lambda end: None,
) -> list[bytes]:
    pieces: list[bytes] = []

    def on_piece(piece: bytes, token: int, logprob: object) -> bool:
        assert (logprob is None) is (sampling.logprobs is None)
        pieces.append(piece)
        return len(pieces) == stop_after

    steps = TokenLoop(
        cast("Runtime", runtime),
        WORDS,
        context_length,
        cast("GrammarCompiler", grammar or FakeGrammar()),
    )
    on_result(steps.run([*prompt], sampling, on_piece, aborted or threading.Event()))
    return pieces


def test_each_token_is_computed_once_and_the_cache_is_cleared() -> None:
    runtime = FakeRuntime([0, 5, 0], [5, 0, 0], [0, 0, 5])
    assert run(runtime) == [b"b", b"a"]
    assert runtime.calls == ["forget", [0, 1], [1], [0], "forget"]


def test_last_token_is_not_computed() -> None:
    runtime = FakeRuntime([0, 5, 0], [5, 0, 0])
    assert run(runtime, stop_after=2) == [b"b", b"a"]
    assert runtime.calls == ["forget", [0, 1], [1], "forget"]


def test_abort_between_two_prompt_chunks_ends_the_run() -> None:
    runtime, aborted = FakeRuntime([0, 5, 0]), threading.Event()
    runtime.on_compute = aborted.set
    assert run(runtime, prompt=[0] * (PREFILL_CHUNK_TOKENS + 1), aborted=aborted) == []
    assert runtime.calls == ["forget", [0] * PREFILL_CHUNK_TOKENS, "forget"]


def test_abort_between_two_tokens_ends_the_run() -> None:
    runtime, aborted = FakeRuntime([0, 5, 0]), threading.Event()
    runtime.on_compute = aborted.set
    assert run(runtime, aborted=aborted) == [b"b"]
    assert runtime.calls == ["forget", [0, 1], "forget"]


def test_stopped_step_ends_the_run_without_logits() -> None:
    runtime = FakeRuntime()
    runtime.is_stopped = True
    assert run(runtime, prompt=[0] * (PREFILL_CHUNK_TOKENS + 1)) == []
    assert runtime.calls == ["forget", [0] * PREFILL_CHUNK_TOKENS, "forget"]


def test_cache_is_cleared_after_a_failure() -> None:
    runtime = FakeRuntime([0, math.nan, 0])
    with pytest.raises(BackendFailed, match="logits that are no numbers"):
        run(runtime)
    assert runtime.calls[-1] == "forget"


def test_run_fails_if_the_cache_cannot_be_cleared() -> None:
    runtime = FakeRuntime()
    runtime.clear_works = False
    with pytest.raises(BackendFailed, match=r"did not clear the previous request: .* not known"):
        run(runtime)
    assert runtime.calls == ["forget"]


def test_forced_tokens_are_computed_in_one_run() -> None:
    # Although the model prefers the end token.
    runtime = FakeRuntime([0, 0, 5], [0, 0, 5])
    assert run(runtime, grammar=FakeGrammar([0, 1, 1], [1, 0])) == [b"a", b"b", b"b", b"b", b"a"]
    # The last forced text is not computed, because no choice follows it.
    assert runtime.calls == ["forget", [0, 1], [0, 1, 1], "forget"]


def test_long_forced_text_is_computed_in_chunks() -> None:
    runtime = FakeRuntime([5, 0, 0], [0, 0, 0], [5, 0, 0])
    assert (
        len(run(runtime, grammar=FakeGrammar([0] * (PREFILL_CHUNK_TOKENS + 1), [0])))
        == PREFILL_CHUNK_TOKENS + 2
    )
    assert runtime.calls == ["forget", [0, 1], [0] * PREFILL_CHUNK_TOKENS, [0], "forget"]


def test_answer_may_stop_within_forced_tokens() -> None:
    runtime = FakeRuntime([5, 0, 0])
    assert run(runtime, grammar=FakeGrammar([0, 1, 1], [1]), stop_after=2) == [b"a", b"b"]
    assert runtime.calls == ["forget", [0, 1], "forget"]


@pytest.mark.parametrize(
    ("words", "piece_count", "reason"),
    [
        ([[0, 1, 1, 1]], 3, FinishReason.LENGTH),
        ([[0, 1, 1]], 3, FinishReason.STOP),
        ([[0, 1, 1], [0]], 3, FinishReason.LENGTH),
        ([[0, 1]], 2, FinishReason.STOP),
    ],
)
def test_forced_tokens_end_at_the_context(
    words: list[list[int]], piece_count: int, reason: FinishReason
) -> None:
    ends: list[RunResult] = []
    grammar = FakeGrammar(*words)
    pieces = run(FakeRuntime([5, 0, 0]), grammar=grammar, context_length=5, on_result=ends.append)
    assert len(pieces) == piece_count
    assert [(end.reason, end.completion_tokens) for end in ends] == [(reason, piece_count)]


def test_penalties_count_forced_tokens() -> None:
    # After two occurrences the first token is less likely than the second.
    rows: tuple[list[float], ...] = ([5, 0, 0], [5, 4.5, 0])
    grammar = FakeGrammar([1, 0, 0], [])
    assert run(FakeRuntime(*rows), grammar=grammar) == [b"b", b"a", b"a", b"a"]
    grammar = FakeGrammar([1, 0, 0], [])
    penalised = SamplingParams(temperature=0, frequency_penalty=1)
    assert run(FakeRuntime(*rows), grammar=grammar, sampling=penalised) == [b"b", b"a", b"a", b"b"]


def test_log_probabilities_compute_each_token_separately() -> None:
    runtime, grammar = FakeRuntime([5, 0, 0], [5, 0, 0], [5, 0, 0]), FakeGrammar([0, 1, 1])
    sampling = SamplingParams(temperature=0, logprobs=0)
    assert run(runtime, grammar=grammar, sampling=sampling) == [b"a", b"b", b"b"]
    assert grammar.calls == [False] * 3
    assert runtime.calls == ["forget", [0, 1], [0], [1], "forget"]


@pytest.mark.parametrize("text", ["<think>", "<think>\n"])
def test_prompt_ending_in_reasoning_is_detected(text: str) -> None:
    grammar, prompt = FakeGrammar(), [0] * 40
    letters = SimpleNamespace(size=3, end_tokens={2}, text=lambda token: "a")
    steps = TokenLoop(
        cast("Runtime", FakeRuntime([0, 0, 5])),
        cast("Vocabulary", letters),
        1024,
        cast("GrammarCompiler", grammar),
    )
    steps.run(prompt, GREEDY, lambda *_: False, threading.Event())
    assert grammar.thinking == "none"
    # One token per letter, the smallest tokens possible.
    letters.text = lambda token: text[token - 3] if token >= 3 else "a"
    steps = TokenLoop(
        cast("Runtime", FakeRuntime([0, 0, 5])),
        cast("Vocabulary", letters),
        1024,
        cast("GrammarCompiler", grammar),
    )
    steps.run([*prompt, *range(3, 3 + len(text))], GREEDY, lambda *_: False, threading.Event())
    assert str(grammar.thinking) == "open"


def test_run_fails_if_no_allowed_token_has_a_logit() -> None:
    with pytest.raises(BackendFailed, match="knows none of the tokens that have to come next"):
        run(FakeRuntime([0, -math.inf, 0]), grammar=FakeGrammar([1]))


def test_last_row_is_fitted_to_the_vocabulary() -> None:
    last = LastLogits()
    last.copy_result(result([[1, 2, 3], [4, 5, 6]]))
    assert last.logits(2, 3).tolist() == [4, 5, 6]
    # Padding columns, and tokens for which the model has no column.
    assert last.logits(2, 2).tolist() == [4, 5]
    assert last.logits(2, 4).tolist() == [4, 5, 6, -math.inf]


@pytest.mark.parametrize(("rows", "tokens", "fits"), [(1, 5, True), (5, 5, True), (2, 5, False)])
def test_number_of_rows_is_checked(rows: int, tokens: int, fits: bool) -> None:
    last = LastLogits()
    last.copy_result(RKLLMResult())
    for row in range(rows):
        last.copy_result(result([[row, 0.0]]))
    if fits:
        assert last.logits(tokens, 2).tolist() == [rows - 1, 0]
    else:
        with pytest.raises(BackendFailed, match="gave 2 rows of logits for 5 tokens"):
            last.logits(tokens, 2)
    with pytest.raises(BackendFailed, match="gave 0 rows"):
        LastLogits().logits(1, 2)


def test_end_token_is_not_sampled_before_min_tokens() -> None:
    end_is_likeliest = [0.0, 1.0, 9.0]
    runtime = FakeRuntime(*[end_is_likeliest] * 3)
    assert run(runtime, sampling=SamplingParams(temperature=0, min_tokens=2)) == [b"b", b"b"]


def test_only_allowed_tokens_are_sampled() -> None:
    sampling = SamplingParams(temperature=0, allowed_token_ids=(0, 2))
    runtime = FakeRuntime([1.0, 9.0, 0.0], [0.0, 9.0, 1.0])
    assert run(runtime, sampling=sampling) == [b"a"]


def test_allowed_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestRejected, match="allowed_token_ids: there is no token 3, the last"):
        run(FakeRuntime(), sampling=SamplingParams(allowed_token_ids=(3,)))

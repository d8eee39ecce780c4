"""Answers made here token by token: the runtime computes logits, and the sampler chooses."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.backends.base import OnPiece, RunResult
from engine.backends.rkllm.logits_rows import FloatRows
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.sampled_generation import Answer
from engine.backends.rkllm.sampler import Floats
from engine.backends.rkllm.structs import RKLLMInferMode
from engine.backends.rkllm.vocabulary import Vocabulary
from engine.errors import BackendFailed
from engine.reasoning import starts_in_reasoning
from engine.request import SamplingParams

if TYPE_CHECKING:
    # Its library need not be there.
    from engine.backends.rkllm.grammar import GrammarCompiler

# Tokens of a prompt in one run. The runtime has a row of logits for each of them, of which the last
# is wanted: with a vocabulary of 150,000 that is 77 MB, and gigabytes of a whole long prompt.
CHUNK = 128
# Of a prompt, in which a mark that it ends with has room, be it a token a letter.
_LAST = 16


class LastRow:
    """Copies the logits that come after the last token, while they are there."""

    def __init__(self) -> None:
        self._rows = 0
        self._copied = b""

    def take(self, result: Any) -> None:
        """Copy what a callback brings."""
        logits = result.logits
        rows = FloatRows.at(logits.logits, logits.num_tokens, logits.vocab_size)
        if rows is not None:
            self._copied = rows.copied(rows.count - 1, 1)
            self._rows += rows.count

    def row(self, tokens: int, size: int) -> Floats:
        """Return them, one for each of the `size` tokens there are.

        Raises:
            BackendFailed: there are rows for another number of tokens, and not for the last alone.
        """
        if self._rows not in (1, tokens):
            raise BackendFailed(
                f"the RKLLM runtime gave {self._rows} rows of logits for {tokens} tokens"
            )
        found: Floats = np.frombuffer(self._copied, np.float32)[:size]
        if len(found) == size:
            return found
        # A token that the model knows nothing of never comes.
        return np.concatenate((found, np.full(size - len(found), -np.inf, np.float32)))


class Stepwise:
    """Generates on a runtime that is asked for logits alone, one run for each token.

    The key-value cache is kept from step to step and dropped before and after an answer, so nothing
    of one is in another, and no `History` has a part in it. Owned by the thread of the run; only
    one at a time.
    """

    def __init__(
        self,
        runtime: Runtime,
        vocabulary: Vocabulary,
        context_length: int,
        grammars: GrammarCompiler,
    ) -> None:
        self._runtime = runtime
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._grammars = grammars

    def run(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        """Generate until the end, the context's end, or until no more is wanted.

        Raises:
            RequestRejected: the sampling names a token that is not there, or a grammar that is
                none.
            BackendFailed: the runtime failed.
        """
        answer = self._answer(prompt, sampling, on_piece)
        started = time.monotonic()
        self._forget()
        try:
            row = self._computed(prompt, sampling.lora, aborted)
            prefill_ms = (time.monotonic() - started) * 1000
            while row is not None and (tokens := answer.go_on(row)):
                row = self._computed(tokens, sampling.lora, aborted)
        finally:
            self._forget()
        return RunResult(
            reason=answer.reason,
            prompt_tokens=len(prompt),
            completion_tokens=answer.tokens,
            prefill_ms=prefill_ms,
        )

    def _forget(self) -> None:
        if not self._runtime.clear_cache():
            raise BackendFailed(
                "the RKLLM runtime did not forget the request before: its key-value cache is not "
                "known to be empty after rkllm_clear_kv_cache"
            )

    def _answer(self, prompt: list[int], sampling: SamplingParams, on_piece: OnPiece) -> Answer:
        end = "".join(map(self._vocabulary.text, prompt[-_LAST:]))
        constraint = self._grammars.constraint(sampling, thinking=starts_in_reasoning(end))
        room = self._context_length - len(prompt)
        return Answer(prompt, sampling, self._vocabulary, constraint, room, on_piece)

    def _computed(
        self, tokens: list[int], lora: str | None, aborted: threading.Event
    ) -> Floats | None:
        """Return the logits after these tokens, None if the answer was aborted on the way."""
        row = None
        for start in range(0, len(tokens), CHUNK):
            row = self._step(tokens[start : start + CHUNK], lora, aborted)
            if row is None:
                break
        return row

    def _step(self, tokens: list[int], lora: str | None, aborted: threading.Event) -> Floats | None:
        if aborted.is_set():
            return None
        last = LastRow()
        run = self._runtime.compute(
            tokens, RKLLMInferMode.RKLLM_INFER_GET_LOGITS, last.take, keep=True, lora=lora
        )
        return None if run.stopped else last.row(len(tokens), self._vocabulary.size)

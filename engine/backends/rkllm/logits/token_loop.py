"""Generate token by token: the runtime computes logits, and a sampler chooses the tokens."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from engine.backends.base import OnPiece, RunResult
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.logits.last_row import LastRow
from engine.backends.rkllm.logits.sampled_generation import SampledGeneration
from engine.backends.rkllm.logits.sampler import Floats
from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed
from engine.prompts.reasoning import find_thinking
from engine.request import SamplingParams

if TYPE_CHECKING:
    # Not imported at run time: llguidance is optional.
    from engine.backends.rkllm.logits.grammar import GrammarCompiler

# Prompt tokens per run. The runtime allocates a row of logits for each of them, although only the
# last is needed: 77 MB with a vocabulary of 150,000, and gigabytes for a long prompt in one run.
PREFILL_CHUNK_TOKENS = 128
# The end of a prompt that is searched for a reasoning marker; long enough for one token per letter.
_TAIL_TOKENS = 16


class LastLogits(LastRow):
    """The logits after the last token as an array."""

    def logits(self, tokens: int, vocabulary_size: int) -> Floats:
        """Return one logit for each of the `vocabulary_size` tokens, after `tokens` were computed.

        Raises:
            BackendFailed: there is neither one row per token nor only the row of the last token.
        """
        row: Floats = np.frombuffer(self.data(tokens), np.float32)[:vocabulary_size]
        if len(row) == vocabulary_size:
            return row
        # Tokens beyond the model's logits can never be sampled.
        return np.concatenate((row, np.full(vocabulary_size - len(row), -np.inf, np.float32)))


class TokenLoop:
    """Generates from the runtime's logits, with one run per token.

    The key-value cache is kept between the steps of an answer and cleared before and after it, so
    answers share nothing and `KvReuse` is not involved. Owned by the thread of the run; one
    generation at a time.
    """

    def __init__(
        self,
        runtime: Runtime,
        vocabulary: Vocabulary,
        context_length: int,
        grammar_compiler: GrammarCompiler,
    ) -> None:
        self._runtime = runtime
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._grammar_compiler = grammar_compiler

    def run(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        """Generate until an end token, the end of the context, or until `on_piece` returns True.

        Raises:
            RequestRejected: the sampling names an unknown token or an invalid grammar.
            BackendFailed: the runtime failed.
        """
        generation = self._start_generation(prompt, sampling, on_piece)
        started = time.monotonic()
        self._clear_cache()
        try:
            row = self._compute_logits(prompt, sampling.lora, aborted)
            prefill_ms = (time.monotonic() - started) * 1000
            while row is not None and (tokens := generation.advance(row)):
                row = self._compute_logits(tokens, sampling.lora, aborted)
        finally:
            self._clear_cache()
        return RunResult(
            reason=generation.reason,
            prompt_tokens=len(prompt),
            completion_tokens=generation.tokens,
            prefill_ms=prefill_ms,
        )

    def _clear_cache(self) -> None:
        if not self._runtime.clear_cache():
            raise BackendFailed(
                "the RKLLM runtime did not clear the previous request: its key-value cache is not "
                "known to be empty after rkllm_clear_kv_cache"
            )

    def _start_generation(
        self, prompt: list[int], sampling: SamplingParams, on_piece: OnPiece
    ) -> SampledGeneration:
        prompt_tail = "".join(map(self._vocabulary.text, prompt[-_TAIL_TOKENS:]))
        thinking = find_thinking(prompt_tail, may_think=sampling.may_think)
        constraint = self._grammar_compiler.build_constraint(sampling, thinking)
        free_tokens = self._context_length - len(prompt)
        return SampledGeneration(
            prompt, sampling, self._vocabulary, constraint, free_tokens, on_piece
        )

    def _compute_logits(
        self, tokens: list[int], lora: str | None, aborted: threading.Event
    ) -> Floats | None:
        """Return the logits after these tokens; None if the answer was aborted meanwhile."""
        row = None
        for start in range(0, len(tokens), PREFILL_CHUNK_TOKENS):
            row = self._compute_chunk(tokens[start : start + PREFILL_CHUNK_TOKENS], lora, aborted)
            if row is None:
                break
        return row

    def _compute_chunk(
        self, tokens: list[int], lora: str | None, aborted: threading.Event
    ) -> Floats | None:
        if aborted.is_set():
            return None
        last_logits = LastLogits()
        run = self._runtime.compute(
            tokens,
            RKLLMInferMode.RKLLM_INFER_GET_LOGITS,
            last_logits.copy_result,
            keep_history=True,
            lora=lora,
        )
        return None if run.stopped else last_logits.logits(len(tokens), self._vocabulary.size)

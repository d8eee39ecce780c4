"""What a model is initialised with, what a run is given, and what is known of one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece
from engine.backends.rkllm.abi import Abi
from engine.backends.rkllm.structs import RKLLMInputType, RKLLMLoraParam
from engine.request import SamplingParams

# What stands for "all tokens": the runtime takes the smaller of it and the vocabulary.
ALL_TOKENS = 1_000_000
_USER = b"user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a model is initialised with; in 1.2 also all there is to say about sampling."""

    model: Path
    context_length: int
    sampling: SamplingParams
    cpu_mask: int = 0
    base_domain_id: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One user's turn as text, which the runtime puts into the model's template by itself."""

    text: str
    enable_thinking: bool = False


@dataclass(slots=True)
class Run:
    """What is known of one run; written by the callback, read when `rkllm_run` has returned."""

    number: int
    on_piece: OnPiece
    # As many tokens are taken; what comes after them is only counted.
    limit: int
    # Of a run for numbers in place of text: copies them out of a result.
    take: Callable[[Any], None] | None = None
    # Of the tokens called back, those after an abort as well; and what stood beside the end.
    ids: list[int] = field(default_factory=list)
    end_id: int = -1
    tokens: int = 0
    stopped: bool = False
    finished: bool = False
    failed: bool = False
    code: int = 0
    prefill_tokens: int = 0
    generate_tokens: int = 0
    prefill_ms: float = 0.0
    peak_mb: float = 0.0

    def end(self, result: Any, *, finished: bool) -> None:
        """Take the runtime's word that it is over, and its numbers if it finished."""
        if not finished:
            self.failed = True
            return
        self.finished = True
        if result:
            self.end_id, perf = result.contents.token_id, result.contents.perf
            self.prefill_tokens, self.generate_tokens = perf.prefill_tokens, perf.generate_tokens
            self.prefill_ms, self.peak_mb = perf.prefill_time_ms, perf.memory_usage_mb


def no_pieces(piece: bytes, token_id: int, logprob: object) -> bool:
    """Take the tokens of a run that is to bring none."""
    return False


def input_of(abi: Abi, prompt: Turn | list[int]) -> tuple[Any, Any]:
    """Return a run's input, and what has to live as long as the run does."""
    given = abi.input()
    given.role = _USER
    if isinstance(prompt, Turn):
        text = prompt.text.encode("utf-8", "replace")
        given.enable_thinking = prompt.enable_thinking
        given.input_type = RKLLMInputType.RKLLM_INPUT_PROMPT
        given.prompt_input = text
        return given, text
    ids = (ctypes.c_int32 * len(prompt))(*prompt)
    given.input_type = RKLLMInputType.RKLLM_INPUT_TOKEN
    given.token_input.input_ids = ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32))
    given.token_input.n_tokens = len(prompt)
    return given, ids


def name_adapter(infer: Any, lora: str | None) -> Any:
    """Have a run use an adapter; named anew for each, since NULL is the bare model."""
    if lora is None:
        return None
    named = RKLLMLoraParam(lora.encode())
    infer.lora_params = ctypes.pointer(named)
    return named


def fill_sampling(struct: Any, sampling: SamplingParams) -> None:
    """Write sampling into the fields that an init's and a run's struct have in common."""
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    top_k = min(sampling.top_k, ALL_TOKENS) if sampling.top_k > 0 else ALL_TOKENS
    struct.top_k = 1 if greedy else top_k
    struct.top_p = 1.0 if greedy else sampling.top_p
    # Zero is divided by somewhere; one token to choose from is as greedy.
    struct.temperature = 1.0 if greedy else sampling.temperature
    struct.repeat_penalty = sampling.repetition_penalty
    struct.frequency_penalty = sampling.frequency_penalty
    struct.presence_penalty = sampling.presence_penalty
    # Its documented defaults; off.
    struct.mirostat, struct.mirostat_tau, struct.mirostat_eta = 0, 5.0, 0.1

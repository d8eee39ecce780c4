"""What a model is initialised with, what a run is given, and what is known of one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece
from engine.backends.rkllm.abi import Abi
from engine.backends.rkllm.structs import LLMCallState, RKLLMInputType, RKLLMLoraParam
from engine.request import SamplingParams

# What stands for "all tokens": the runtime takes the smaller of it and the vocabulary.
ALL_TOKENS = 1_000_000
_USER = b"user"

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a model is initialised with; in 1.2 also all there is to say about sampling.

    `n_batch` is how many prompts each run has.
    """

    model: Path
    context_length: int
    sampling: SamplingParams
    cpu_mask: int = 0
    base_domain_id: int = 0
    n_batch: int = 1


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
    # Whether the library knows the limit, and is about to end by itself there.
    told: bool = False
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

    @property
    def full(self) -> bool:
        """Whether the library, which knew the limit, came to it: all is said that was wanted."""
        return self.told and self.tokens >= self.limit

    def take_result(self, result: Any, state: int) -> bool:
        """Take what a callback brings; return whether the run is to be aborted."""
        if state == _NORMAL:
            found = result.contents
            if self.take is not None:
                self.take(found)
                return False
            piece, token_id = found.text or b"", found.token_id
            self.ids.append(token_id)
        elif state == _WAITING:
            # Its bytes come with a later token.
            piece, token_id = b"", -1
            self.ids.append(result.contents.token_id if result else -1)
        else:
            self.end(result, finished=state == _FINISH)
            return False
        tokens = self.tokens = self.tokens + 1
        if self.stopped:
            return False
        if tokens > self.limit:
            return True
        enough = self.on_piece(piece, token_id, None)
        # A library that was told the limit ends there with its counts, which an abort would cost.
        return not self.told if tokens == self.limit else enough

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


def inputs_of(abi: Abi, prompts: Sequence[Turn | list[int]], places: int) -> tuple[Any, Any]:
    """Return a run's array of inputs, one where there is one place, and what has to live with it.

    The library looks at as many as it was initialised for; places without a prompt get the first
    token of the first one, which is in the vocabulary and the least there can be to read.
    """
    if places == 1:
        return input_of(abi, prompts[0])
    least = prompts[0][:1] if isinstance(prompts[0], list) else prompts[0]
    made = [input_of(abi, each) for each in (*prompts, *[least] * (places - len(prompts)))]
    return (abi.input * places)(*(given for given, _ in made)), made


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

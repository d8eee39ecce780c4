"""Try what only a board can decide: the trials of the doctor, each in a process of its own.

Each of them does what some library crashed at, or reuses what a run has left, so it gets a freshly
loaded model, and the end of its process is a finding too. `profile.py` keeps the outcomes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from engine.backends.options import RkllmOptions
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.backend import RkllmBackend
from engine.backends.rkllm.board.profile import Profile
from engine.backends.rkllm.runs.run import Run, ignore_token
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed
from engine.request import SamplingParams

Findings = Iterator[tuple[str, Any]]

# Two answers can be compared only if nothing in them is left to chance.
_GREEDY = SamplingParams(temperature=0.0)
_ANSWER_TOKENS = 8
_FIRST_ANSWER_TOKENS = 4
# Valid in any vocabulary; their text does not matter.
_FIRST_TOKEN = 100
_PREFIX_TOKENS = 256
_ENDING_TOKENS = 16
PREFILL_TOKENS = (512, 4096)
LOGITS_TOKENS = (1, 4, 8, 16)
# Of several runs the fastest counts: others had to wait for something else.
_REPEATS = 3


class Trial(NamedTuple):
    """A trial, its step in the report, and the finding that is False if its process crashes."""

    step: str
    run: Callable[[Runtime, int], Findings]
    outcome: str


def run_trial(step: str, options: RkllmOptions) -> Iterator[tuple[str, Any] | None]:
    """Load a model as the backend would, yield None, then a plain run and the findings of a trial.

    Only after `PLAIN_RUN` does a failure say something about what the trial tries.

    Raises:
        ModelLoadFailed: the model was not loaded.
        BackendFailed: the runtime failed, so the outcome is that it does not work.
    """
    plain = replace(
        options,
        mode="generate",
        n_batch=1,
        sampling="reload",
        profile=None,
        record_process=f"trial: {step}",
        vision=None,
    )
    backend = RkllmBackend(plain)
    context_length = backend.load().context_length
    backend.loaded_model.handle.load_for_sampling(_GREEDY)
    yield None
    runtime = backend.loaded_model.runtime
    run = _generate(runtime, _tokens(_ENDING_TOKENS))
    if run.failed or run.code or not run.tokens:
        raise BackendFailed("a plain run failed")
    yield PLAIN_RUN, run.tokens
    yield from TRIALS[step].run(runtime, context_length)
    backend.close()


def try_prefix_reuse(runtime: Runtime, context_length: int) -> Findings:
    """Find out whether a run without history skips what its prompt shares with the one before it.

    A maintainer says so (rknn-llm#432). The answer must be the same as without: a model that is
    asked about another client's prompt would be worse than a slow one.
    """
    shared_tokens = min(_PREFIX_TOKENS, context_length // 4)
    prefix = _tokens(shared_tokens)
    first, second = ([*prefix, *_tokens(_ENDING_TOKENS, start=start)] for start in (1_000, 2_000))
    alone, repeats = _generate_twice(runtime, second)
    yield REPEATS, repeats
    _clear(runtime)
    _generate(runtime, first)
    after = _generate(runtime, second)
    yield "prompt tokens", len(second)
    yield "of them as before", shared_tokens
    yield "tokens computed, as the runtime counts", after.prefill_tokens
    yield "prefill ms", round(after.prefill_ms, 1)
    yield "prefill ms without the prompt before", round(alone.prefill_ms, 1)
    # The answers of a board that does not repeat itself show nothing.
    is_same = _have_one_answer(after, alone) if repeats else None
    yield "same answer", is_same
    was_skipped = 0 < after.prefill_tokens <= len(second) - shared_tokens // 2
    yield PREFIX_REUSE, was_skipped and is_same
    prefill_ms = {}
    for tokens in PREFILL_TOKENS:
        _clear(runtime)
        # Another start, so that nothing is reused.
        prompt = _tokens(min(tokens, context_length - _ANSWER_TOKENS), start=_FIRST_TOKEN + tokens)
        prefill_ms[str(len(prompt))] = round(_generate(runtime, prompt, limit=1).prefill_ms, 1)
    yield PREFILL_MS, prefill_ms


def try_history_reuse(runtime: Runtime, context_length: int) -> Findings:
    """Find out whether a prompt that continues a kept cache is answered as it would be whole.

    The reuse of chats relies on it. A board answered second questions with endless nonsense
    (RK3576, rkllama#83).
    """
    start = _tokens(min(_PREFIX_TOKENS, context_length // 4))
    _clear(runtime)
    first = _generate(runtime, start, limit=_FIRST_ANSWER_TOKENS, keep_history=True)
    held = runtime.cache_size()
    prompt = [*start, *first.ids, *_tokens(_ENDING_TOKENS, start=1_000)]
    yield "prompt tokens", len(prompt)
    yield "of them in the cache", held
    is_known = held is not None and len(start) <= held <= len(start) + len(first.ids)
    if held is None or not is_known or any(token < 0 for token in first.ids):
        # The first answer cannot be sent again, or the cache holds something else.
        yield HISTORY_REUSE, None
        return
    continued = _generate(runtime, prompt[held:], keep_history=True)
    expected, repeats = _generate_twice(runtime, prompt)
    yield REPEATS, repeats
    yield "prefill ms", round(continued.prefill_ms, 1)
    yield "prefill ms of the whole prompt", round(expected.prefill_ms, 1)
    yield HISTORY_REUSE, _have_one_answer(continued, expected) if repeats else None


def try_logits(runtime: Runtime, context_length: int) -> Findings:
    """Find out whether logits of tokens that follow others can be computed, and how fast.

    1.2.3 ended in an assertion on an RK3588 (oRKLLM 51643f0).
    """
    _clear(runtime)
    _compute_logits(runtime, _tokens(_ENDING_TOKENS))
    _compute_logits(runtime, _tokens(1))
    yield LOGITS_WITH_HISTORY, True
    run_ms = {}
    for tokens in LOGITS_TOKENS:
        times = [_compute_logits(runtime, _tokens(tokens)) for _ in range(_REPEATS)]
        run_ms[str(tokens)] = round(min(times), 2)
    yield LOGITS_RUN_MS, run_ms


PLAIN_RUN = "tokens of a plain run"
# A board may give other tokens for one prompt: with 1.3.1, a model in FP16 on one core did.
REPEATS = "same answer to the same prompt, both from an empty cache"
PREFIX_REUSE = "prefix reused"
HISTORY_REUSE = "continued chats are answered as whole ones"
LOGITS_WITH_HISTORY = "logits of tokens after others"
PREFILL_MS = "ms to compute a prompt, by its tokens"
LOGITS_RUN_MS = "ms of a run, by its new tokens"

TRIALS = MappingProxyType(
    {
        each.step: each
        for each in (
            Trial("prompts with a common start", try_prefix_reuse, PREFIX_REUSE),
            Trial("continued chat", try_history_reuse, HISTORY_REUSE),
            Trial("logits", try_logits, LOGITS_WITH_HISTORY),
        )
    }
)


def build_profile(values: Mapping[str, Any]) -> Profile:
    """Build the profile from the findings of all trials, by name."""
    return Profile(
        prefix_reuse=values.get(PREFIX_REUSE),
        history_reuse=values.get(HISTORY_REUSE),
        logits_with_history=values.get(LOGITS_WITH_HISTORY),
        prefill_ms=values.get(PREFILL_MS, {}),
        logits_run_ms=values.get(LOGITS_RUN_MS, {}),
    )


def _tokens(count: int, *, start: int = _FIRST_TOKEN) -> list[int]:
    return [start + number % 512 for number in range(count)]


def _clear(runtime: Runtime) -> None:
    if not runtime.clear_cache():
        raise BackendFailed("the key-value cache was not empty after rkllm_clear_kv_cache")


def _generate(
    runtime: Runtime,
    prompt: list[int],
    *,
    limit: int = _ANSWER_TOKENS,
    keep_history: bool = False,
) -> Run:
    return runtime.run(
        prompt, _GREEDY, limit, ignore_token, threading.Event(), keep_history=keep_history
    )


def _generate_twice(runtime: Runtime, prompt: list[int]) -> tuple[Run, bool]:
    """Return a run from an empty cache, and whether a second one gives the same tokens."""
    _clear(runtime)
    first = _generate(runtime, prompt)
    _clear(runtime)
    return first, _have_one_answer(_generate(runtime, prompt), first)


def _have_one_answer(run: Run, other: Run) -> bool:
    return run.ids[:_ANSWER_TOKENS] == other.ids[:_ANSWER_TOKENS]


def _compute_logits(runtime: Runtime, tokens: list[int]) -> float:
    """Compute the logits of tokens that follow the cache's content; return the time in ms."""
    started = time.monotonic()
    runtime.compute(
        tokens,
        RKLLMInferMode.RKLLM_INFER_GET_LOGITS,
        lambda result: None,
        keep_history=True,
    )
    return (time.monotonic() - started) * 1000

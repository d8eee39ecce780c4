"""Check how a run of the runtime ended, and build its result."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.backends.base import RunResult
from engine.backends.rkllm.batching.batch import Batch
from engine.backends.rkllm.runs.padding import padding_error
from engine.backends.rkllm.runs.run import MultimodalPrompt, Run, RuntimeInput
from engine.errors import BackendFailed
from engine.output import FinishReason

logger = logging.getLogger(__name__)

_MAX_MS = 1e9


def check_run(run: Run | Batch, context_length: int) -> None:
    """Raise BackendFailed if a run failed, did not finish, or generated nothing but padding."""
    if isinstance(run, Run) and run.is_padding:
        raise padding_error()
    # After an abort the answer is complete, so an error code does not matter.
    if (run.failed or run.code) and not run.stopped:
        reason = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
        raise BackendFailed(
            f"the RKLLM runtime failed and gave no reason ({reason}); a prompt or answer that "
            f"does not fit the context of {context_length} tokens is one"
        )
    if not (run.finished or run.stopped or (isinstance(run, Run) and run.reached_limit)):
        raise BackendFailed("the RKLLM runtime ended the run without saying that it was done")


def count_skipped(run: Run, prompt: RuntimeInput) -> int:
    """Return how many tokens of a prompt the runtime did not compute, by its statistics.

    It is 0 if they are not known: an aborted run has no statistics, and the runtime tokenises a
    text itself.
    """
    if not isinstance(prompt, list) or not run.finished or run.prefill_tokens <= 0:
        return 0
    return max(len(prompt) - run.prefill_tokens, 0)


def build_run_result(
    run: Run, runtime_input: RuntimeInput, context_length: int, cache_size: Callable[[], int | None]
) -> RunResult:
    """Build a run's result, and log a warning if the runtime's token count differs.

    `cache_size` is called if nothing else shows how many tokens a text prompt had.

    Raises:
        BackendFailed: the run failed or did not finish.
    """
    check_run(run, context_length)
    if isinstance(runtime_input, list):
        prompt_tokens = len(runtime_input)
    elif run.finished:
        prompt_tokens = max(run.prefill_tokens, 0)
    elif isinstance(runtime_input, MultimodalPrompt):
        prompt_tokens = runtime_input.tokens
    else:
        prompt_tokens = max((cache_size() or 0) - run.tokens, 0)
    # A runtime of version 1.3.1 was observed to count one token less.
    if run.finished and not 0 <= run.tokens - run.generate_tokens <= 1:
        logger.warning(
            "the runtime counts %d tokens and called back for %d",
            run.generate_tokens,
            run.tokens,
        )
    tokens = min(run.tokens, run.limit)
    context_full = prompt_tokens + tokens >= context_length
    return RunResult(
        reason=FinishReason.LENGTH if context_full else FinishReason.STOP,
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        reported_tokens=run.generate_tokens if run.finished else None,
        callbacks=run.tokens,
        # With 0.0 as its first argument, `max` also replaces NaN.
        prefill_ms=min(max(0.0, run.prefill_ms), _MAX_MS),
    )

"""How a run of the runtime ended: what went wrong, and what was counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.backends.base import RunResult
from engine.backends.rkllm.batch import Batch
from engine.backends.rkllm.inputs import RuntimeInput
from engine.backends.rkllm.runs import Run
from engine.errors import BackendFailed
from engine.output import FinishReason

logger = logging.getLogger(__name__)

_MAX_MS = 1e9


def check_end(run: Run | Batch, context_length: int) -> None:
    """Look whether a run ended as one does. Raises BackendFailed."""
    # What becomes of an abort takes nothing from an answer that is complete.
    if (run.failed or run.code) and not run.stopped:
        said = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
        raise BackendFailed(
            f"the RKLLM runtime failed and gave no reason ({said}); a prompt or answer that "
            f"does not fit the context of {context_length} tokens is one"
        )
    if not (run.finished or run.stopped or (isinstance(run, Run) and run.full)):
        raise BackendFailed("the RKLLM runtime ended the run without saying that it was done")


def end_of(
    run: Run, given: RuntimeInput, context_length: int, cache_size: Callable[[], int | None]
) -> RunResult:
    """Return what a run was, checked against what the runtime says of it.

    `cache_size` is asked where nothing else tells how long a text was.

    Raises:
        BackendFailed: it failed, or ended in a way that is none.
    """
    check_end(run, context_length)
    if isinstance(given, list):
        prompt_tokens = len(given)
    elif run.finished:
        prompt_tokens = max(run.prefill_tokens, 0)
    else:
        prompt_tokens = max((cache_size() or 0) - run.tokens, 0)
    # One less is how a runtime of 1.3.1 was seen to count.
    if run.finished and not 0 <= run.tokens - run.generate_tokens <= 1:
        logger.warning(
            "the runtime counts %d tokens and called back for %d",
            run.generate_tokens,
            run.tokens,
        )
    tokens = min(run.tokens, run.limit)
    full = prompt_tokens + tokens >= context_length
    return RunResult(
        reason=FinishReason.LENGTH if full else FinishReason.STOP,
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        reported_tokens=run.generate_tokens if run.finished else None,
        callbacks=run.tokens,
        # Also where it is no number, which max does not take.
        prefill_ms=min(max(0.0, run.prefill_ms), _MAX_MS),
    )

"""Check how a run of the runtime ended, and build its result."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.backends.base import RunResult
from engine.backends.rkllm.batching.batch import Batch
from engine.backends.rkllm.printed.library_output import CapturedOutput, printed_error
from engine.backends.rkllm.runs.padding import padding_error
from engine.backends.rkllm.runs.run import MultimodalPrompt, Run, RuntimeInput, UserTurn
from engine.errors import BackendFailed
from engine.output import FinishReason

logger = logging.getLogger(__name__)

_MAX_MS = 1e9


# The runtime may add a first token and an end token. Special tokens that are read as plain text are
# several tokens each.
_MAX_ADDED_TOKENS = 4
# With fewer tokens an answer is short: if the library reports an error then, it is no answer.
_SHORT_ANSWER_TOKENS = 16


def is_output_needed(run: Run | Batch) -> bool:
    """Return whether the library may have printed why a run brought nothing."""
    return bool(run.failed or run.code or not (run.tokens or run.stopped))


def check_run(
    run: Run | Batch, context_length: int, printed: CapturedOutput, *, was_aborted: bool = False
) -> None:
    """Raise BackendFailed if a run failed, did not finish, or generated nothing but padding.

    A run also failed if the library has `printed` an error and brought no answer or a short one:
    with an old driver it prints `matmul(w8a8) run failed` and reports success. An answer that its
    end token, a limit or a stop string has ended is judged like others, and one that the client
    aborted is not (`was_aborted`).
    """
    if isinstance(run, Run) and run.is_padding:
        raise padding_error()
    # After an abort the answer is complete, so an error code does not matter.
    if (run.failed or run.code) and not run.stopped:
        reason = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
        hint = f"a prompt or answer that does not fit the context of {context_length} tokens is one"
        if printed.error:
            raise BackendFailed(
                f"the RKLLM runtime failed with the words: {printed.error} ({reason}); {hint}"
            )
        raise BackendFailed(f"the RKLLM runtime failed and gave no reason ({reason}); {hint}")
    if not (run.finished or run.stopped or (isinstance(run, Run) and run.reached_limit)):
        raise BackendFailed("the RKLLM runtime ended the run without saying that it was done")

    if not was_aborted:
        # Tokens that came after an abort of the run are no part of the answer.
        check_printed(printed, min(run.tokens, run.limit))


def is_short(tokens: int) -> bool:
    """Return whether an answer is no answer if the library has printed an error."""
    return tokens < _SHORT_ANSWER_TOKENS


def check_printed(printed: CapturedOutput, tokens: int = 0) -> None:
    """Raise BackendFailed if the library printed an error and at most a few tokens.

    With more tokens the answer stands, and the error is logged.
    """
    if not printed.error:
        return
    if is_short(tokens):
        raise printed_error(printed.error)
    logger.warning("the RKLLM runtime printed an error during a run: %s", printed.error)


def warn_of_prompt_tokens(run: Run, runtime_input: RuntimeInput) -> None:
    """Log a warning if the runtime read more tokens than the prompt has.

    For some models it reads the special tokens of a text as plain text, so that a rendered chat is
    no chat to the model (oRKLLM). Only a prompt with images is sent as text where its tokens are
    known.
    """
    if isinstance(runtime_input, UserTurn):
        return
    if isinstance(runtime_input, MultimodalPrompt):
        tokens = runtime_input.tokens
        reason = "special tokens in the text may be read as plain text"
    else:
        tokens, reason = len(runtime_input), "post a report"
    if not (run.finished and 0 < tokens < run.prefill_tokens - _MAX_ADDED_TOKENS):
        return
    logger.warning(
        "the runtime read %d tokens of a prompt of %d: %s", run.prefill_tokens, tokens, reason
    )


def build_run_result(
    run: Run,
    runtime_input: RuntimeInput,
    context_length: int,
    cache_size: Callable[[], int | None],
    skipped_tokens: int = 0,
) -> RunResult:
    """Build a run's result, and log a warning if the runtime's token count differs.

    `cache_size` is called if nothing else shows how many tokens a text prompt had.
    `skipped_tokens` are those of the prompt that the runtime did not compute, by its statistics.
    The run has been checked by `check_run`.
    """
    if isinstance(runtime_input, list):
        prompt_tokens = len(runtime_input)
    elif run.finished:
        prompt_tokens = max(run.prefill_tokens, 0) + skipped_tokens
    elif isinstance(runtime_input, MultimodalPrompt):
        prompt_tokens = runtime_input.tokens
    else:
        prompt_tokens = max((cache_size() or 0) - run.tokens, 0)
    warn_of_prompt_tokens(run, runtime_input)
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

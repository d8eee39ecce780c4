"""Reuse the key-value cache of the previous run, so that only a chat's new turn is computed."""

from __future__ import annotations

import logging
from typing import NamedTuple

from engine.backends.rkllm.runs.run import MultimodalPrompt, Run, RuntimeInput
from engine.backends.rkllm.runtime import Runtime

logger = logging.getLogger(__name__)


class PromptPart(NamedTuple):
    """The part of a prompt to send, and how to run it.

    `reused` is the number of tokens that need not be computed, and `keep_history` keeps the
    key-value cache after the run. With `skips_prefix` the runtime itself skips what it has
    computed, and reports the number in its statistics.
    """

    send: RuntimeInput
    reused: int = 0
    keep_history: bool = False
    skips_prefix: bool = False


class KvReuse:
    """Decides how much of a prompt the key-value cache holds, and clears it for another chat.

    An answer about another client's conversation is worse than a slow one, so the state is verified
    where possible: the tokens that were sent and called back are taken as the cache's content only
    if the runtime reports as many tokens in it. After a failure, or an answer that filled the
    context, the content counts as unknown. If the cache could not be cleared once, it is not used
    any more. A run with another LoRA adapter does not use the key-value cache of earlier runs. A
    prompt with images neither uses nor leaves a cache: the tokens of two images are the same.

    With `skip_prefixes` the whole prompt is sent without history, and the runtime skips the tokens
    that it has in common with the one before it, whichever chat that was from. Only some versions
    do so (rknn-llm#432): the doctor finds out.

    Owned by the thread that uses the handle.
    """

    def __init__(self, *, enabled: bool, skip_prefixes: bool = False) -> None:
        self.enabled = enabled
        self.skip_prefixes = skip_prefixes
        # The tokens that the last run received and called back; empty if they are not known.
        self._cached_tokens: list[int] = []
        self._prompt_length = 0
        # The adapter of the last run.
        self._lora: str | None = None
        # Whether the last run kept its key-value cache, which the next one would continue.
        self._is_kept = False
        # Whether the last run succeeded: the cache is unknown after a failure.
        self._is_known = True

    def prepare(
        self,
        runtime: Runtime,
        prompt: RuntimeInput,
        *,
        lora: str | None = None,
        isolated: bool = False,
    ) -> PromptPart | None:
        """Return the part of a prompt to send; clear the key-value cache of other content.

        `lora` is the adapter of the run. `isolated` is for a run that must not share the key-value
        cache with others, such as an embedding.

        Return None if the key-value cache was not empty after it was cleared: the caller must
        reload the model and call this method again.
        """
        isolated = isolated or isinstance(prompt, MultimodalPrompt)
        cached_tokens, self._cached_tokens = self._cached_tokens, []
        was_kept, self._is_kept = self._is_kept, False
        was_known, self._is_known = self._is_known, False
        if isolated or not self.enabled or not (self.skip_prefixes or isinstance(prompt, list)):
            # A run without history continues nothing, unless the runtime skips what it knows.
            may_continue = was_kept or self.skip_prefixes
            return self._clear(runtime, PromptPart(prompt)) if may_continue else PromptPart(prompt)
        self._is_kept = True
        same_adapter, self._lora = lora == self._lora, lora
        if self.skip_prefixes:
            part = PromptPart(prompt, skips_prefix=True)
            return part if same_adapter and was_known else self._clear(runtime, part)
        if isinstance(prompt, list) and same_adapter:
            reusable = self._count_reusable(runtime, cached_tokens, prompt)
            if reusable > 0:
                return PromptPart(prompt[reusable:], reusable, keep_history=True)
        return self._clear(runtime, PromptPart(prompt, keep_history=True))

    def _clear(self, runtime: Runtime, part: PromptPart) -> PromptPart | None:
        """Clear the key-value cache; return None, and end all reuse, if it stays full."""
        if runtime.clear_cache():
            return part
        logger.warning(
            "the key-value cache was not empty after rkllm_clear_kv_cache, so the model is loaded "
            "again and every prompt read whole from here on (RKLLM_KV_REUSE)"
        )
        self.enabled = self.skip_prefixes = self._is_kept = False
        return None

    def _count_reusable(self, runtime: Runtime, cached_tokens: list[int], prompt: list[int]) -> int:
        """Return the cache's size if its whole content is a prefix of the prompt, else 0."""
        if not cached_tokens:
            return 0
        size = runtime.cache_size()
        # The last token called back may be missing from the cache, and so may the end token. If the
        # cache holds more tokens than were called back, its content is unknown. At least one token
        # of the prompt must remain to be sent.
        if size is None or not self._prompt_length <= size <= len(cached_tokens):
            return 0
        if size >= len(prompt) or prompt[:size] != cached_tokens[:size]:
            return 0
        return size

    def record_run(self, prompt: RuntimeInput, run: Run, context_length: int) -> None:
        """Record what a run has left in the key-value cache."""
        failed = run.failed or run.code or not (run.finished or run.stopped)
        if failed:
            return
        if isinstance(prompt, MultimodalPrompt):
            return
        self._is_known = True
        # Beyond the context the runtime drops tokens from the middle and does not report which.
        if self._is_kept and len(_tokens_or_empty(prompt)) + run.tokens < context_length:
            self._cached_tokens = [*_tokens_or_empty(prompt), *run.ids, *_end_token_of(run)]
            self._prompt_length = len(_tokens_or_empty(prompt))

    def reset(self) -> None:
        """Forget all recorded state, after the model was loaded."""
        self._cached_tokens, self._is_kept, self._is_known = [], False, True


def _end_token_of(run: Run) -> list[int]:
    """Return the end token of an answer, if the FINISH callback reported one.

    The SDK does not document the token id of that callback; if it repeats the last token, it is not
    an end token.
    """
    is_new = run.finished and not run.stopped and run.ids and run.end_id not in (-1, run.ids[-1])
    return [run.end_id] if is_new else []


def _tokens_or_empty(prompt: RuntimeInput) -> list[int]:
    """Return a prompt's tokens; none for a text, which only the runtime tokenises."""
    return prompt if isinstance(prompt, list) else []

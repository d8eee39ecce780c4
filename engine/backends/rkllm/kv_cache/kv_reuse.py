"""Reuse the key-value cache of the previous run, so that only a chat's new turn is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from engine.backends.rkllm.kv_cache.text_token_counter import TextTokenCounter
from engine.backends.rkllm.runs.run import MultimodalPrompt, Run, RuntimeInput, UserTurn
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
    any more.

    `prefix_reuse` is whether the runtime itself skips the tokens that a run without history has in
    common with the run before it, whichever chat that was from; None if that is not known. Only
    some versions do so (rknn-llm#432). If it is known, the whole prompt is sent without history.
    Unless it is known that the runtime does not, the cache is cleared before each run that must
    share nothing with the one before it: one with images, whose tokens are the same for any two
    images, one with another LoRA adapter, an embedding, and each run with reuse off.

    Without `history_reuse` no run continues a kept cache: the doctor saw that such a run answers
    otherwise on this board.

    Owned by the thread that uses the handle.
    """

    def __init__(
        self, *, enabled: bool, prefix_reuse: bool | None = None, history_reuse: bool = True
    ) -> None:
        self.enabled = enabled
        self.prefix_reuse = prefix_reuse
        self._history_reuse = history_reuse
        # Whether rkllm_clear_kv_cache has always worked.
        self._can_clear = True
        # The tokens that the last run received and called back; empty if they are not known.
        self._cached_tokens: list[int] = []
        self._prompt_length = 0
        # The adapter of the last run.
        self._lora: str | None = None
        # Whether the last run kept its key-value cache, which the next one would continue.
        self._is_kept = False
        # Whether the last run succeeded: the cache is unknown after a failure.
        self._is_known = True
        # Whether there was no run since the cache was cleared, or the model loaded.
        self._is_empty = True
        # The same before the last run.
        self._was_empty = True
        self._text_counter = TextTokenCounter()

    @property
    def skips_prefixes(self) -> bool:
        """Whether the runtime is left to skip what a prompt has in common with the last one."""
        return self.enabled and self.prefix_reuse is True

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
        was_empty, self._is_empty = self._is_empty, False
        self._was_empty = was_empty
        same_adapter, self._lora = lora == self._lora, lora
        is_fresh = was_empty or not (was_kept or self.prefix_reuse is not False)
        can_continue = self._history_reuse and isinstance(prompt, list)
        if isolated or not self.enabled or not (self.skips_prefixes or can_continue):
            # Where the cache cannot be cleared, the runtime may skip a part all the same.
            may_skip = not self._can_clear and self.prefix_reuse is not False
            part = PromptPart(prompt, skips_prefix=may_skip)
            if is_fresh or not (isolated or was_kept or self._can_clear or not same_adapter):
                return part
            return self._clear(runtime, part)
        self._is_kept = True
        if self.skips_prefixes:
            part = PromptPart(prompt, skips_prefix=True)
            return part if same_adapter and was_known else self._clear(runtime, part)
        if isinstance(prompt, list) and same_adapter:
            reusable = self._count_reusable(runtime, cached_tokens, prompt)
            if reusable > 0:
                return PromptPart(prompt[reusable:], reusable, keep_history=True)
        return self._clear(runtime, PromptPart(prompt, keep_history=True))

    def clear(self, runtime: Runtime) -> None:
        """Clear the cache after a run that must leave nothing in it."""
        self._is_empty = runtime.clear_cache()

    def _clear(self, runtime: Runtime, part: PromptPart) -> PromptPart | None:
        """Clear the key-value cache; return None, and end all reuse, if it stays full."""
        if self._can_clear and runtime.clear_cache():
            self._was_empty = True
            return part
        if self._can_clear:
            logger.warning(
                "the key-value cache was not empty after rkllm_clear_kv_cache, so the model is "
                "loaded again, and no chat is continued from here on (RKLLM_KV_REUSE)"
            )
        self.enabled = self._can_clear = self._is_kept = False
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

    def count_skipped(
        self, run: Run, prompt: RuntimeInput, cache_size: Callable[[], int | None]
    ) -> int:
        """Return how many tokens of a prompt the runtime skipped, by its statistics.

        It is 0 if they are not known: an aborted run has no statistics. For a prompt that equals
        the last one, a runtime of version 1.3.0 counts no computed token.
        """
        if not run.finished or run.prefill_tokens < (1 if run.stopped else 0):
            return 0
        if isinstance(prompt, list):
            return 0 if self._was_empty else max(len(prompt) - run.prefill_tokens, 0)
        if not isinstance(prompt, UserTurn):
            return 0
        return self._text_counter.count_skipped(
            prompt.text, run, cache_size(), skips_nothing=self._was_empty
        )

    def record_run(self, prompt: RuntimeInput, run: Run, context_length: int) -> None:
        """Record what a run has left in the key-value cache."""
        failed = run.failed or run.code or not (run.finished or run.stopped)
        if failed:
            return
        if isinstance(prompt, MultimodalPrompt):
            return
        # Without its statistics, the number of a text's tokens is not known.
        self._is_known = run.finished or isinstance(prompt, list)
        # Beyond the context the runtime drops tokens from the middle and does not report which.
        if self._is_kept and len(_tokens_or_empty(prompt)) + run.tokens < context_length:
            self._cached_tokens = [*_tokens_or_empty(prompt), *run.ids, *_end_token_of(run)]
            self._prompt_length = len(_tokens_or_empty(prompt))

    def reset(self) -> None:
        """Forget all recorded state, after the model was loaded."""
        self._cached_tokens, self._is_kept, self._is_known = [], False, True
        self._is_empty, self._lora = True, None


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

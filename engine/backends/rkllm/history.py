"""What a handle has read before, so that of a chat only the new turn is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from engine.backends.rkllm.inputs import RuntimeInput
from engine.backends.rkllm.prompt_caches import PromptCaches
from engine.backends.rkllm.runtime import Run, Runtime

logger = logging.getLogger(__name__)


class PromptPart(NamedTuple):
    """What of a prompt to send, how much of it need not be read, and what to do with it then."""

    send: RuntimeInput
    reused: int = 0
    keep: bool = False
    save_to: Path | None = None


class KvReuse:
    """Says how much of a prompt a handle has read already, and has it forget what is of another.

    An answer about somebody else's conversation is worse than one that comes late, so nothing is
    believed that can be asked: the cache counts as what was sent and called back only where the
    runtime says that as many tokens are in it. After a failure, or an answer that filled the
    context, it counts as unknown. Once it could not be emptied, nothing is kept in it any more.
    A run that names a prompt cache keeps no history, with which the file would be of no use, and
    what was computed with one LoRA adapter is nothing to a run with another. Owned by the thread
    that runs on the handle.
    """

    def __init__(self, caches: PromptCaches, *, on: bool) -> None:
        self._caches = caches
        self.on = on
        # What the last run was given, with all that it called back; empty where that is not known.
        self._known: list[int] = []
        self._given = 0
        # The adapter that it was computed with.
        self._lora: str | None = None
        # Whether a run would go on from what is in the cache.
        self._kept = False

    def begin(
        self,
        runtime: Runtime,
        prompt: RuntimeInput,
        *,
        lora: str | None = None,
        cache: Path | None = None,
        alone: bool = False,
    ) -> PromptPart | None:
        """Return what to send of a prompt, all else being cleared from the key-value cache.

        `lora` is the adapter it is run with, `cache` the file of a prompt that begins like it;
        `alone` is for a run that nothing goes on from, such as a vector's. None is for a key-value
        cache that was not empty even when it was cleared: the model has to be loaded again, and
        this asked once more.

        Raises:
            RequestRejected: the prompt cache can be neither used nor saved.
        """
        self._caches.release_all_but(runtime, cache)
        part = self._in_history(runtime, prompt, lora, alone=alone or cache is not None)
        if part is None or cache is None:
            return part
        reused, save_to = self._caches.use(runtime, cache, _tokens_or_empty(prompt))
        return part._replace(reused=reused, save_to=save_to)

    def _in_history(
        self, runtime: Runtime, prompt: RuntimeInput, lora: str | None, *, alone: bool
    ) -> PromptPart | None:
        known, self._known = self._known, []
        kept, self._kept = self._kept, False
        if not self.on:
            return PromptPart(prompt)
        if isinstance(prompt, list) and not alone:
            self._kept = True
            same, self._lora = lora == self._lora, lora
            if same and (held := self._held(runtime, known, prompt)) > 0:
                return PromptPart(prompt[held:], held, keep=True)
        elif not kept:
            # A run without history leaves nothing that another one would go on from.
            return PromptPart(prompt)
        if runtime.clear_cache():
            return PromptPart(prompt, keep=self._kept)
        logger.warning(
            "the key-value cache was not empty after rkllm_clear_kv_cache, so the model is loaded "
            "again and every prompt read whole from here on (RKLLM_KV_REUSE)"
        )
        self.on = self._kept = False
        return None

    def _held(self, runtime: Runtime, known: list[int], prompt: list[int]) -> int:
        """Return how many of the prompt's first tokens are in the cache, and nothing after them."""
        if not known:
            return 0
        held = runtime.cache_size()
        # The token told last need not be in it yet, nor the one that ended the answer; one that
        # nobody was told of may be, and is as good as another conversation. At least one token has
        # to be left to be sent.
        if held is None or not self._given <= held <= len(known) or held >= len(prompt):
            return 0
        return held if prompt[:held] == known[:held] else 0

    def end(self, prompt: RuntimeInput, cache: Path | None, run: Run, context_length: int) -> None:
        """Take in what a run has left in the cache, and in the file of the one it names."""
        failed = run.failed or run.code or not (run.finished or run.stopped)
        if failed:
            return
        # Whoever has begun to speak has read the prompt, also if it was cut off then.
        if cache is not None and run.tokens:
            self._caches.saved(cache, _tokens_or_empty(prompt))
        # Beyond the context the runtime drops tokens from the middle, and does not say which.
        if self._kept and len(_tokens_or_empty(prompt)) + run.tokens < context_length:
            self._known = [*_tokens_or_empty(prompt), *run.ids, *_end_token_of(run)]
            self._given = len(_tokens_or_empty(prompt))

    def forget(self) -> None:
        """Count the handle as new."""
        self._known, self._kept = [], False
        self._caches.forget()


def _end_token_of(run: Run) -> list[int]:
    """Return the token that an answer ended with, if it was told.

    What stands beside an end is written nowhere: the last token once more is no news of it.
    """
    told = run.finished and not run.stopped and run.ids and run.end_id not in (-1, run.ids[-1])
    return [run.end_id] if told else []


def _tokens_or_empty(prompt: RuntimeInput) -> list[int]:
    """Return a prompt's tokens, none of a text, which only the runtime can split."""
    return prompt if isinstance(prompt, list) else []

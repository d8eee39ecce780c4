"""What a handle's key-value cache holds, so that of a chat only the new turn is read."""

from __future__ import annotations

import logging
from typing import NamedTuple

from engine.backends.rkllm.inputs import Input
from engine.backends.rkllm.runtime import Run, Runtime

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """What of a prompt has to be sent, after how many of its tokens, and whether to keep it."""

    send: Input
    reused: int = 0
    keep: bool = False


class History:
    """Says how much of a prompt a handle has read already, and has it forget what is of another.

    An answer about somebody else's conversation is worse than one that comes late, so nothing is
    believed that can be asked: the cache counts as what was sent and called back only where the
    runtime says that as many tokens are in it. After a failure, or an answer that filled the
    context, it counts as unknown. Once it could not be emptied, nothing is kept in it any more.
    Owned by the thread that runs.
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on
        # What the last run was given, with all that it called back; empty where that is not known.
        self._known: list[int] = []
        self._given = 0
        # Whether a run would go on from what is in the cache.
        self._kept = False

    def begin(self, runtime: Runtime, prompt: Input) -> Part | None:
        """Return what to send of a prompt, all else being cleared from the cache.

        None is for a cache that was not empty even then: the model has to be loaded again.
        """
        known, self._known = self._known, []
        kept, self._kept = self._kept, False
        if not self._on:
            return Part(prompt)
        if isinstance(prompt, list):
            self._kept = True
            if (held := self._held(runtime, known, prompt)) > 0:
                return Part(prompt[held:], held, keep=True)
        elif not kept:
            # A run without history leaves nothing that another one would go on from.
            return Part(prompt)
        if runtime.clear_cache():
            return Part(prompt, keep=self._kept)
        logger.warning(
            "the key-value cache was not empty after rkllm_clear_kv_cache, so the model is loaded "
            "again and every prompt read whole from here on (RKLLM_KV_REUSE)"
        )
        self._on = self._kept = False
        return None

    def _held(self, runtime: Runtime, known: list[int], prompt: list[int]) -> int:
        """Return how many of the prompt's first tokens are in the cache, and nothing after them."""
        if not known:
            return 0
        held = runtime.cache_size()
        # The token told last need not be in it yet; one that nobody was told of may be, and is as
        # good as another conversation. At least one token has to be left to be sent.
        if held is None or not self._given <= held <= len(known) or held >= len(prompt):
            return 0
        return held if prompt[:held] == known[:held] else 0

    def end(self, prompt: Input, run: Run, context_length: int) -> None:
        """Take in what a run has left in the cache."""
        failed = run.failed or run.code or not (run.finished or run.stopped)
        if failed or not self._kept or not isinstance(prompt, list):
            return
        # Beyond the context the runtime drops tokens from the middle, and does not say which.
        if len(prompt) + run.tokens < context_length:
            self._known = [*prompt, *run.ids]
            self._given = len(prompt)

    def forget(self) -> None:
        """Count the cache as that of a handle that is new."""
        self._known, self._kept = [], False

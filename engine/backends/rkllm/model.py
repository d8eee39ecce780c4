"""A model on its handle, and when it has to be loaded again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import replace

from engine.backends.rkllm import driver
from engine.backends.rkllm.abi import Abi
from engine.backends.rkllm.lora_adapters import LoraAdapter
from engine.backends.rkllm.model_capabilities import SAMPLING_PARAMETERS
from engine.backends.rkllm.runtime import Runtime, Setup
from engine.errors import ModelLoadFailed
from engine.request import SamplingParams

logger = logging.getLogger(__name__)


class ReloadableModel:
    """Loads a model with its adapters, and again where a request's sampling takes that.

    `reloads` says whether it may; `on_load` is told of every load, for what was in the handle is
    gone. Owned by the thread that runs on the handle.
    """

    def __init__(
        self,
        runtime: Runtime,
        abi: Abi,
        setup: Setup,
        adapters: tuple[LoraAdapter, ...],
        *,
        reloads: bool,
        on_load: Callable[[], None],
    ) -> None:
        self.runtime = runtime
        self._setup = setup
        self._adapters = adapters
        self._on_load = on_load
        own = abi.sampling_per_run
        # What a load decides for all requests until the next one, and what all of a run have alike.
        self._at_load = () if not reloads else ("ignore_eos",) if own else SAMPLING_PARAMETERS
        self._at_run = SAMPLING_PARAMETERS if own else ()

    def load(self) -> float:
        """Load it, in place of what is loaded; return how long that took, in ms.

        Raises:
            ModelLoadFailed: the runtime does not take it, or one of its adapters.
        """
        started = time.monotonic()
        setup = self._setup
        try:
            self.runtime.init(setup)
        except ModelLoadFailed as error:
            raise ModelLoadFailed(
                f"MODEL_PATH: {setup.model} was not loaded: {error}. The model must be converted "
                "for this chip and for a runtime of this version, fit into memory, and have a "
                f"context of {setup.context_length} tokens (CONTEXT_LENGTH); {driver.told()}"
            ) from error
        self.runtime.load_adapters(self._adapters)
        self._on_load()
        return (time.monotonic() - started) * 1000

    def load_for(self, sampling: SamplingParams) -> float:
        """Load it again if this sampling needs it; return how long that took, in ms.

        Raises:
            ModelLoadFailed: it could not be loaded again.
        """
        given = self._setup.sampling
        wanted = replace(given, **{name: getattr(sampling, name) for name in self._at_load})
        if wanted == given and self.runtime.ready:
            return 0.0
        logger.info("the model is loaded again for other sampling parameters")
        before, self._setup = self._setup, replace(self._setup, sampling=wanted)
        try:
            return self.load()
        except ModelLoadFailed:
            self._setup = before
            raise

    def shares(self, sampling: SamplingParams) -> Hashable:
        """Return what requests must have alike to be computed in one run."""
        names = ("lora", *self._at_run, *self._at_load)
        return tuple(getattr(sampling, name) for name in names)

"""The loaded model, which is reloaded when a request needs other sampling parameters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.board import driver, nodes
from engine.backends.rkllm.model_capabilities import SAMPLING_PARAMETERS
from engine.backends.rkllm.printed.library_facts import describe_facts, read_facts
from engine.backends.rkllm.printed.library_output import CapturedOutput, LibraryOutput
from engine.backends.rkllm.printed.load_advice import find_load_advice
from engine.backends.rkllm.runs.run import InitConfig
from engine.backends.rkllm.runtime import Runtime
from engine.errors import IS_TRANSIENT, ModelLoadFailed
from engine.request import SamplingParams

logger = logging.getLogger(__name__)


class ReloadableModel:
    """Loads a model with its adapters, and reloads it if a request's sampling requires it.

    `can_reload` allows reloads. `on_load` is called after every load, because a load clears the
    handle's caches. `record_printed` is called with the lines that explain a failed load. `facts`
    are what the library printed about itself and the model at the last load. Owned by the thread
    that uses the handle.
    """

    def __init__(
        self,
        runtime: Runtime,
        abi: Abi,
        config: InitConfig,
        adapters: tuple[LoraAdapter, ...],
        *,
        can_reload: bool,
        on_load: Callable[[], None],
        record_printed: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self.runtime = runtime
        self._config = config
        self._adapters = adapters
        self._on_load = on_load
        self._record_printed = record_printed
        self.output = LibraryOutput()
        self.facts: Mapping[str, Any] = {}
        per_run = abi.sampling_per_run
        # Parameters that apply to all requests until the next load.
        self._load_time_parameters: tuple[str, ...] = ()
        if can_reload:
            self._load_time_parameters = ("ignore_eos",) if per_run else SAMPLING_PARAMETERS
        # Parameters that apply to all requests of a run.
        self._per_run_parameters = SAMPLING_PARAMETERS if per_run else ()

    def load(self) -> float:
        """Load the model and unload the previous one; return the duration in ms.

        Raises:
            ModelLoadFailed: the runtime refused the model or one of its adapters.
        """
        started = time.monotonic()
        config, failure = self._config, ""
        with self.output.capture() as output:
            try:
                self.runtime.init(config)
            except ModelLoadFailed as error:
                failure = str(error)
        if self._record_printed is not None and (failure or output.errors):
            self._record_printed(output.reason_lines)
        if not failure and output.errors:
            # The runtime then answers with garbage, or fails in each run.
            self.runtime.unload()
            failure = "rkllm_init succeeded, but reported an error"
        if failure:
            raise _load_error(config, failure, output)
        facts = read_facts(output.lines)
        if facts != self.facts:
            logger.info("the library reports: %s", describe_facts(facts))
        self.facts = facts
        self.runtime.load_adapters(self._adapters)
        self._on_load()
        return (time.monotonic() - started) * 1000

    def load_for_sampling(self, sampling: SamplingParams) -> float:
        """Reload the model if this sampling requires it; return the duration in ms.

        Raises:
            ModelLoadFailed: the reload failed.
        """
        loaded = self._config.sampling
        changes = {name: getattr(sampling, name) for name in self._load_time_parameters}
        requested = replace(loaded, **changes)
        if requested == loaded and self.runtime.is_loaded:
            return 0.0
        logger.info("the model is loaded again for other sampling parameters")
        previous, self._config = self._config, replace(self._config, sampling=requested)
        try:
            return self.load()
        except ModelLoadFailed:
            self._config = previous
            raise

    def close(self) -> None:
        """Free the model."""
        self.runtime.close()
        self.output.close()

    def batch_key(self, sampling: SamplingParams) -> Hashable:
        """Return the values that requests must have in common to share a run."""
        names = ("lora", *self._per_run_parameters, *self._load_time_parameters)
        return tuple(getattr(sampling, name) for name in names)


def _load_error(config: InitConfig, failure: str, output: CapturedOutput) -> ModelLoadFailed:
    """Return the error of a load, with advice about what the library printed."""
    reason = f" (the library said: {output.reason})" if output.reason else ""
    advice = find_load_advice(output.lines, config.cpu_mask)
    needs = "; ".join(advice) or (
        "the model must be converted for this chip and for a runtime of this version, fit into "
        f"memory, and have a context of {config.context_length} tokens (CONTEXT_LENGTH)"
    )
    return ModelLoadFailed(
        f"MODEL_PATH: {config.model} was not loaded: {failure}{reason}. "
        f"{needs[0].upper()}{needs[1:]}; {driver.describe_driver()}"
        f"{nodes.describe_closed_nodes()}",
        # Another process may still hold memory of the NPU (rknn-llm#335, #522).
        **{IS_TRANSIENT: not advice},
    )

"""One model in the RKLLM runtime: init, runs one after the other, abort, destroy."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece
from engine.backends.rkllm.abi import Abi, Functions
from engine.backends.rkllm.batch import Batch
from engine.backends.rkllm.lora_adapters import LoraAdapter
from engine.backends.rkllm.runs import (
    ALL_TOKENS,
    Run,
    Setup,
    Turn,
    fill_sampling,
    inputs_of,
    name_adapter,
    no_pieces,
)
from engine.backends.rkllm.structs import (
    CallbackAnswer,
    LLMCallState,
    RKLLMInferMode,
    RKLLMLoraAdapter,
    RKLLMPromptCacheParam,
)
from engine.errors import BackendFailed, ModelLoadFailed
from engine.request import SamplingParams

# What a caller needs beside the class is named here as well.
__all__ = ["Run", "Runtime", "Setup", "Turn", "fill_sampling"]

# An abort that comes before the run has got going is lost, so it is said again until it works.
_ABORT_AGAIN_S = 0.02

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)


class Runtime:
    """Owns one handle; the calls into the library are all here.

    `init`, `run` and `close` are called by one thread at a time. The library calls back from
    whichever thread it likes; what it calls back about is told by the run's number in `userdata`,
    so that a callback which comes after FINISH or the run's return finds nobody. `rkllm_abort` is
    called from a thread of its own, since nothing says that a callback may do so.
    """

    def __init__(self, functions: Functions, abi: Abi) -> None:
        self._functions = functions
        self._abi = abi
        self._handle: ctypes.c_void_p | None = None
        # Held by the library for as long as the handle lives.
        self._callback = abi.init_callback(self._on_result)
        self._adapters: list[RKLLMLoraAdapter] = []
        # 1.2 has no such answer, and frees them in its own time.
        self._released = int(CallbackAnswer.RELEASE_OUTPUT if abi.sampling_per_run else 0)
        self._places = 1
        self._runs = 0
        self._run: Run | Batch | None = None
        # Between a run's return and an abort of it: the next run must not be hit.
        self._lock = threading.Lock()
        self._abort_wanted = threading.Event()
        self._closed = False
        threading.Thread(target=self._abort_forever, name="rkllm-abort", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether a model is initialised."""
        return self._handle is not None

    @property
    def _loaded(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise BackendFailed("no model is loaded")
        return self._handle

    def init(self, setup: Setup) -> None:
        """Load the model, in place of one that is loaded. Raises ModelLoadFailed."""
        self._destroy()
        param = self._functions.createDefaultParam()
        param.model_path = bytes(setup.model)
        param.max_context_len = setup.context_length
        param.max_new_tokens = -1
        param.skip_special_token = True
        param.is_async = False
        fill_sampling(param, setup.sampling)
        if self._abi.sampling_per_run:
            param.ignore_eos_token = setup.sampling.ignore_eos
        extend = param.extend_param
        extend.n_batch = self._places = setup.n_batch
        extend.base_domain_id = setup.base_domain_id
        if setup.cpu_mask:
            extend.enabled_cpus_mask = setup.cpu_mask
            extend.enabled_cpus_num = setup.cpu_mask.bit_count()
        handle = ctypes.c_void_p()
        code = self._functions.init(handle, param, self._callback)
        if code != 0 or not handle.value:
            raise ModelLoadFailed(f"rkllm_init failed with {code}")
        self._handle = handle

    def load_adapters(self, adapters: tuple[LoraAdapter, ...]) -> None:
        """Load the LoRAs that runs may name, once after each `init`. Raises ModelLoadFailed."""
        handle = self._loaded
        self._adapters = [
            RKLLMLoraAdapter(bytes(adapter.path), adapter.name.encode(), adapter.scale)
            for adapter in adapters
        ]
        for adapter, given in zip(adapters, self._adapters, strict=True):
            code = self._functions.load_lora(handle, given)
            if code != 0:
                # Without it, requests that name it would be answered by the bare model.
                self._destroy()
                raise ModelLoadFailed(
                    f"RKLLM_LORA: {adapter.name} was not loaded: rkllm_load_lora failed with "
                    f"{code}. {adapter.path} must be made for this very model and this chip"
                )

    def run(
        self,
        prompt: Turn | list[int],
        sampling: SamplingParams,
        limit: int,
        on_piece: OnPiece,
        aborted: threading.Event,
        *,
        keep: bool = False,
        save_to: Path | None = None,
    ) -> Run:
        """Generate up to `limit` tokens; returns when the library has.

        `keep` goes on from what the key-value cache holds, and leaves prompt and answer in it;
        `save_to` is where the library writes what it made of the prompt.

        Raises:
            BackendFailed: no model is loaded.
        """
        run = Run(self._runs + 1, on_piece, limit, told=self._abi.sampling_per_run)
        self._begin(run)
        if aborted.is_set():
            run.stopped = True
            self._run = None
            return run
        infer, alive = self._infer(sampling, limit)
        infer.keep_history = int(keep)
        if save_to is not None:
            infer.prompt_cache_params = ctypes.pointer(RKLLMPromptCacheParam(1, bytes(save_to)))
        self._call(run, [prompt], infer)
        # What the struct points to has to live until here.
        del alive
        return run

    def run_batch(self, batch: Batch) -> None:
        """Generate for all members of a batch, side by side; returns when the library has.

        Raises:
            BackendFailed: no model is loaded.
        """
        batch.number = self._runs + 1
        self._begin(batch)
        if batch.stopped:
            # Nobody is left of it, and nobody could abort it before it was begun.
            self._run = None
            return
        infer, alive = self._infer(batch.sampling, batch.limit)
        self._call(batch, batch.begin(), infer)
        # What the struct points to has to live until here.
        del alive

    def compute(
        self,
        tokens: list[int],
        mode: RKLLMInferMode,
        take: Callable[[Any], None],
        *,
        keep: bool = False,
        lora: str | None = None,
    ) -> Run:
        """Run tokens through the model for what it computes of them; `take` copies it.

        `keep` has them come after those that were kept before, and be kept until `clear_cache`.

        Raises:
            BackendFailed: no model is loaded, or the run failed.
        """
        run = Run(self._runs + 1, no_pieces, ALL_TOKENS, take)
        self._begin(run)
        infer = self._abi.infer_param()
        infer.mode = mode
        infer.keep_history = int(keep)
        named = name_adapter(infer, lora)
        self._call(run, [tokens], infer)
        # What the struct points to has to live until here.
        del named
        if (run.failed or run.code) and not run.stopped:
            said = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
            raise BackendFailed(f"the RKLLM runtime failed and gave no reason ({said})")
        return run

    def _begin(self, run: Run | Batch) -> None:
        with self._lock:
            self._runs = run.number
            self._run = run

    def _call(self, run: Run | Batch, prompts: Sequence[Turn | list[int]], infer: Any) -> None:
        try:
            given, keep = inputs_of(self._abi, prompts, self._places)
            run.code = self._functions.run(self._loaded, given, infer, run.number)
            # What the struct points to has to live until here.
            del keep
        finally:
            with self._lock:
                self._run = None

    def abort(self, only: Batch | None = None) -> None:
        """Make the run that is under way end; harmless if there is none. Any thread may call it.

        `only` is for one that may have ended: the next run is not hit.
        """
        run = self._run
        if run is not None and only in (None, run):
            run.stopped = True
            self._abort_wanted.set()

    def cache_size(self) -> int | None:
        """Return how many tokens the key-value cache holds, None where the library won't tell."""
        # One number for each sequence of a batch, of which there may be 255.
        sizes = (ctypes.c_int * 256)()
        if self._handle is None or self._functions.get_kv_cache_size(self._handle, sizes) != 0:
            return None
        return int(sizes[0])

    def clear_cache(self) -> bool:
        """Empty the key-value cache; return whether its size is 0 then: the call proves nothing."""
        if self._handle is not None:
            self._functions.clear_kv_cache(self._handle, 0, None, None)
        return self.cache_size() == 0

    def load_prompt_cache(self, path: Path) -> bool:
        """Have runs begin with what they share with a prompt in a file; whether it was loaded."""
        handle = self._handle
        return handle is not None and self._functions.load_prompt_cache(handle, bytes(path)) == 0

    def release_prompt_cache(self) -> None:
        """Have runs begin from nothing again."""
        if self._handle is not None:
            self._functions.release_prompt_cache(self._handle)

    def close(self) -> None:
        """Free the model; once, since a second destroy ends the process."""
        self._closed = True
        self._abort_wanted.set()
        self._destroy()

    def _destroy(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._functions.destroy(handle)

    def _infer(self, sampling: SamplingParams, limit: int) -> tuple[Any, Any]:
        infer = self._abi.infer_param()
        lora = name_adapter(infer, sampling.lora)
        if self._abi.sampling is None:
            return infer, lora
        own = self._abi.sampling()
        fill_sampling(own, sampling)
        infer.sampling_params = ctypes.pointer(own)
        infer.max_new_tokens = limit
        return infer, (own, lora)

    def _on_result(self, result: Any, number: int | None, state: int) -> int:
        run = self._run
        # Between FINISH and the return of `rkllm_run` the run is still there, and is over.
        if run is None or run.number != number or run.finished:
            return 0
        if run.take_result(result, state):
            self.abort()
        return self._released if run.take is not None and state == _NORMAL else 0

    def _abort_forever(self) -> None:
        while True:
            self._abort_wanted.wait()
            # Before anything is looked at: an abort that comes now must not be forgotten.
            self._abort_wanted.clear()
            if self._closed:
                return
            with self._lock:
                run, handle = self._run, self._handle
                if run is None or handle is None or not run.stopped:
                    continue
                self._functions.abort(handle)
            time.sleep(_ABORT_AGAIN_S)
            self._abort_wanted.set()

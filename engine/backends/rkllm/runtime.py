"""The RKLLM runtime with one model: init, sequential runs, abort, destroy."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from engine.backends.base import OnPiece
from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.abi.abi import Abi, Functions
from engine.backends.rkllm.abi.structs import (
    CallbackAnswer,
    LLMCallState,
    RKLLMInferMode,
    RKLLMLoraAdapter,
)
from engine.backends.rkllm.batching.batch import Batch
from engine.backends.rkllm.board.encoder_lock import EncoderLock, hold_for_load
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.runs.run import (
    ALL_TOKENS,
    InitConfig,
    Run,
    RuntimeInput,
    build_input_array,
    fill_sampling,
    ignore_token,
    set_adapter,
)
from engine.errors import BackendFailed, ModelLoadFailed
from engine.request import SamplingParams

# The library ignores an abort that arrives before it has started the run, so it is repeated until
# the run ends.
_ABORT_RETRY_S = 0.02

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)


class Runtime:
    """Owns one handle and makes all calls into the library.

    One thread at a time calls `init`, `run` and `close`. The library calls back on any thread.
    Each callback carries the run's number in `userdata`, so a callback that arrives after FINISH or
    after the run has returned is ignored. `rkllm_abort` is called on a thread of its own, because
    the SDK does not document that a callback may call it. With a `recorder`, all calls and
    callbacks are recorded. With an `encoder_lock`, loads and runs wait for vision encoders of other
    processes.
    """

    def __init__(
        self,
        functions: Functions,
        abi: Abi,
        recorder: Recorder | None = None,
        encoder_lock: EncoderLock | None = None,
    ) -> None:
        self._functions = functions if recorder is None else recorder.wrap(functions)
        on_result = self._on_result if recorder is None else recorder.wrap_callback(self._on_result)
        self._abi = abi
        self._encoder_lock = encoder_lock
        self._handle: ctypes.c_void_p | None = None
        # The library uses the callback for as long as the handle exists.
        self._callback = abi.init_callback(on_result)
        self._param: Any = None
        self._adapters: list[RKLLMLoraAdapter] = []
        # 1.2 does not support this answer; it frees the output itself.
        self._copied_answer = int(CallbackAnswer.RELEASE_OUTPUT if abi.sampling_per_run else 0)
        self._n_batch = 1
        self._last_run_number = 0
        self._active_run: Run | Batch | None = None
        # Whether the library was called for the active run, which may wait for the NPU before.
        self._is_running = False
        # Held while a run returns and while it is aborted: an abort must not hit the next run.
        self._lock = threading.Lock()
        self._abort_requested = threading.Event()
        self._closed = False
        threading.Thread(target=self._abort_loop, name="rkllm-abort", daemon=True).start()

    @property
    def is_loaded(self) -> bool:
        """Whether a model is initialised."""
        return self._handle is not None

    @property
    def _loaded_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise BackendFailed("no model is loaded")
        return self._handle

    def init(self, config: InitConfig) -> None:
        """Load the model and unload the previous one. Raises ModelLoadFailed."""
        self._destroy()
        param = self._functions.createDefaultParam()
        param.model_path = bytes(config.model)
        param.max_context_len = config.context_length
        param.max_new_tokens = -1
        param.skip_special_token = True
        param.is_async = False
        fill_sampling(param, config.sampling)
        if self._abi.sampling_per_run:
            param.ignore_eos_token = config.sampling.ignore_eos
        extend = param.extend_param
        extend.n_batch = self._n_batch = config.n_batch
        extend.base_domain_id = config.base_domain_id
        if config.cpu_mask:
            extend.enabled_cpus_mask = config.cpu_mask
            extend.enabled_cpus_num = config.cpu_mask.bit_count()
        if config.image_marks is not None and hasattr(param, "img_start"):
            marks = [text.encode() for text in config.image_marks]
            param.img_start, param.img_end, param.img_content = marks
        # The library may read its texts after init.
        self._param = param
        handle = ctypes.c_void_p()
        with hold_for_load(self._encoder_lock, is_encoder=False):
            code = self._functions.init(handle, param, self._callback)
        if code != 0 or not handle.value:
            raise ModelLoadFailed(f"rkllm_init failed with {code}")
        self._handle = handle
        if config.has_raw_prompts:
            code = self._functions.set_chat_template(handle, b"", b"", b"")
            if code != 0:
                self._destroy()
                raise ModelLoadFailed(f"rkllm_set_chat_template failed with {code}")

    def load_adapters(self, adapters: tuple[LoraAdapter, ...]) -> None:
        """Load the LoRA adapters that runs may name; call it after each `init`.

        Raises ModelLoadFailed.
        """
        handle = self._loaded_handle
        self._adapters = [
            RKLLMLoraAdapter(bytes(adapter.path), adapter.name.encode(), adapter.scale)
            for adapter in adapters
        ]
        for adapter, param in zip(adapters, self._adapters, strict=True):
            code = self._functions.load_lora(handle, param)
            if code != 0:
                # Without the adapter, the base model would answer requests that name it.
                self._destroy()
                raise ModelLoadFailed(
                    f"RKLLM_LORA: {adapter.name} was not loaded: rkllm_load_lora failed with "
                    f"{code}. {adapter.path} must be made for this very model and this chip"
                )

    def run(
        self,
        prompt: RuntimeInput,
        sampling: SamplingParams,
        limit: int,
        on_piece: OnPiece,
        aborted: threading.Event,
        *,
        keep_history: bool = False,
        end_tokens: frozenset[int] = frozenset(),
    ) -> Run:
        """Generate up to `limit` tokens, or one of the `end_tokens`; return when the library does.

        With `keep_history` the run continues from the content of the key-value cache and leaves
        prompt and answer in it.

        Raises:
            BackendFailed: no model is loaded.
        """
        number = self._last_run_number + 1
        run = Run(
            number,
            on_piece,
            limit,
            limit_is_known=self._abi.sampling_per_run,
            end_tokens=end_tokens,
        )
        self._register_run(run)
        if aborted.is_set():
            run.stopped = True
            self._active_run = None
            return run
        infer, keep_alive = self._build_infer_param(sampling, limit)
        infer.keep_history = int(keep_history)
        self._run_library(run, [prompt], infer)
        # The struct holds pointers to these objects, so they must exist until here.
        del keep_alive
        return run

    def run_batch(self, batch: Batch) -> None:
        """Generate for all requests of a batch in parallel; return when the library returns.

        Raises:
            BackendFailed: no model is loaded.
        """
        batch.number = self._last_run_number + 1
        self._register_run(batch)
        if batch.stopped:
            # All requests were aborted before the run was registered, so no abort could reach it.
            self._active_run = None
            return
        infer, keep_alive = self._build_infer_param(batch.sampling, batch.limit)
        self._run_library(batch, batch.start(), infer)
        # The struct holds pointers to these objects, so they must exist until here.
        del keep_alive

    def compute(
        self,
        tokens: list[int],
        mode: RKLLMInferMode,
        copy_output: Callable[[Any], None],
        *,
        keep_history: bool = False,
        lora: str | None = None,
    ) -> Run:
        """Compute hidden states or logits of tokens; `copy_output` copies them from a result.

        With `keep_history` the tokens follow those in the key-value cache and stay in it until
        `clear_cache`.

        Raises:
            BackendFailed: no model is loaded, or the run failed.
        """
        run = Run(self._last_run_number + 1, ignore_token, ALL_TOKENS, copy_output)
        self._register_run(run)
        infer = self._abi.infer_param()
        infer.mode = mode
        infer.keep_history = int(keep_history)
        keep_alive = set_adapter(infer, lora)
        self._run_library(run, [tokens], infer)
        # The struct holds pointers to these objects, so they must exist until here.
        del keep_alive
        if (run.failed or run.code) and not run.stopped:
            reason = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
            raise BackendFailed(f"the RKLLM runtime failed ({reason})")
        return run

    def _register_run(self, run: Run | Batch) -> None:
        with self._lock:
            self._last_run_number = run.number
            self._active_run = run

    def _run_library(self, run: Run | Batch, prompts: Sequence[RuntimeInput], infer: Any) -> None:
        try:
            inputs, keep_alive = build_input_array(self._abi, prompts, self._n_batch)
            lock = self._encoder_lock
            with nullcontext() if lock is None else lock.hold_for_run(lambda: run.stopped):
                self._is_running = True
                # An abort after this check reaches the library, because the run counts as running.
                if not run.stopped:
                    run.code = self._functions.run(self._loaded_handle, inputs, infer, run.number)
            # The struct holds pointers to these objects, so they must exist until here.
            del keep_alive
        finally:
            with self._lock:
                self._active_run = None
                self._is_running = False

    def abort(self, expected: Batch | None = None) -> None:
        """Stop the active run, if there is one. Thread-safe.

        With `expected`, do nothing if another run is active: that batch has already ended.
        """
        run = self._active_run
        if run is not None and expected in (None, run):
            run.stopped = True
            self._abort_requested.set()

    def cache_size(self) -> int | None:
        """Return the number of tokens in the key-value cache; None if the library reports none."""
        # The library writes one number per sequence of a batch, and n_batch is at most 255.
        sizes = (ctypes.c_int * 256)()
        if self._handle is None or self._functions.get_kv_cache_size(self._handle, sizes) != 0:
            return None
        return int(sizes[0])

    def clear_cache(self) -> bool:
        """Clear the key-value cache; return whether its size is 0 afterwards.

        The size is read because a successful `rkllm_clear_kv_cache` does not prove anything.
        """
        if self._handle is not None:
            self._functions.clear_kv_cache(self._handle, 0, None, None)
        return self.cache_size() == 0

    def unload(self) -> None:
        """Free the model; `init` may load one again."""
        self._destroy()

    def close(self) -> None:
        """Free the model. The handle is destroyed only once: a second destroy kills the process."""
        self._closed = True
        self._abort_requested.set()
        self._destroy()

    def _destroy(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._functions.destroy(handle)

    def _build_infer_param(self, sampling: SamplingParams, limit: int) -> tuple[Any, Any]:
        infer = self._abi.infer_param()
        lora = set_adapter(infer, sampling.lora)
        if self._abi.sampling is None:
            return infer, lora
        sampling_param = self._abi.sampling()
        fill_sampling(sampling_param, sampling)
        infer.sampling_params = ctypes.pointer(sampling_param)
        infer.max_new_tokens = limit
        return infer, (sampling_param, lora)

    def _on_result(self, result: Any, number: int | None, state: int) -> int:
        run = self._active_run
        # Between FINISH and the return of `rkllm_run` the run is still registered but has ended.
        if run is None or run.number != number or run.finished:
            return 0
        if run.on_result(result, state):
            self.abort()
        return self._copied_answer if run.copy_output is not None and state == _NORMAL else 0

    def _abort_loop(self) -> None:
        while True:
            self._abort_requested.wait()
            # Clear before reading the state, so that an abort that arrives now is not lost.
            self._abort_requested.clear()
            if self._closed:
                return
            with self._lock:
                run, handle = self._active_run, self._handle
                if run is None or handle is None or not (run.stopped and self._is_running):
                    continue
                self._functions.abort(handle)
            time.sleep(_ABORT_RETRY_S)
            self._abort_requested.set()

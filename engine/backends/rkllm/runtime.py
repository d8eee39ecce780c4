"""One model in the RKLLM runtime: init, runs one after the other, abort, destroy."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backends.base import OnPiece
from engine.backends.rkllm.abi import Abi, Functions
from engine.backends.rkllm.structs import LLMCallState, RKLLMInputType, RKLLMPromptCacheParam
from engine.errors import BackendFailed, ModelLoadFailed
from engine.request import SamplingParams

# An abort that comes before the run has got going is lost, so it is said again until it works.
_ABORT_AGAIN_S = 0.02
# What stands for "all tokens": the runtime takes the smaller of it and the vocabulary.
_ALL_TOKENS = 1_000_000

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)
_USER = b"user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a model is initialised with; in 1.2 also all there is to say about sampling."""

    model: Path
    context_length: int
    sampling: SamplingParams
    cpu_mask: int = 0
    base_domain_id: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One user's turn as text, which the runtime puts into the model's template by itself."""

    text: str
    enable_thinking: bool = False


@dataclass(slots=True)
class Run:
    """What is known of one run; written by the callback, read when `rkllm_run` has returned."""

    number: int
    on_piece: OnPiece
    # As many tokens are taken; what comes after them is only counted.
    limit: int
    # Of the tokens called back, those after an abort as well; and what stood beside the end.
    ids: list[int] = field(default_factory=list)
    end_id: int = -1
    tokens: int = 0
    stopped: bool = False
    finished: bool = False
    failed: bool = False
    code: int = 0
    prefill_tokens: int = 0
    generate_tokens: int = 0
    prefill_ms: float = 0.0
    peak_mb: float = 0.0


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
        self._runs = 0
        self._run: Run | None = None
        # Between a run's return and an abort of it: the next run must not be hit.
        self._lock = threading.Lock()
        self._abort_wanted = threading.Event()
        self._closed = False
        threading.Thread(target=self._abort_forever, name="rkllm-abort", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether a model is initialised."""
        return self._handle is not None

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
        extend.base_domain_id = setup.base_domain_id
        if setup.cpu_mask:
            extend.enabled_cpus_mask = setup.cpu_mask
            extend.enabled_cpus_num = setup.cpu_mask.bit_count()
        handle = ctypes.c_void_p()
        code = self._functions.init(handle, param, self._callback)
        if code != 0 or not handle.value:
            raise ModelLoadFailed(f"rkllm_init failed with {code}")
        self._handle = handle

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
        handle = self._handle
        if handle is None:
            raise BackendFailed("no model is loaded")
        with self._lock:
            self._runs += 1
            run = Run(self._runs, on_piece, limit)
            self._run = run
        if aborted.is_set():
            run.stopped = True
            self._run = None
            return run
        given, alive = self._input(prompt)
        infer, alive_too = self._infer(sampling, limit)
        infer.keep_history = keep
        if save_to is not None:
            infer.prompt_cache_params = ctypes.pointer(RKLLMPromptCacheParam(1, bytes(save_to)))
        try:
            run.code = self._functions.run(handle, given, infer, run.number)
        finally:
            with self._lock:
                self._run = None
        # What the structs point to has to live until here.
        del alive, alive_too
        return run

    def abort(self) -> None:
        """Make the run that is under way end; harmless if there is none. Any thread may call it."""
        run = self._run
        if run is not None:
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

    def _input(self, prompt: Turn | list[int]) -> tuple[Any, Any]:
        given = self._abi.input()
        given.role = _USER
        if isinstance(prompt, Turn):
            text = prompt.text.encode("utf-8", "replace")
            given.enable_thinking = prompt.enable_thinking
            given.input_type = RKLLMInputType.RKLLM_INPUT_PROMPT
            given.prompt_input = text
            return given, text
        ids = (ctypes.c_int32 * len(prompt))(*prompt)
        given.input_type = RKLLMInputType.RKLLM_INPUT_TOKEN
        given.token_input.input_ids = ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32))
        given.token_input.n_tokens = len(prompt)
        return given, ids

    def _infer(self, sampling: SamplingParams, limit: int) -> tuple[Any, Any]:
        infer = self._abi.infer_param()
        if self._abi.sampling is None:
            return infer, None
        own = self._abi.sampling()
        fill_sampling(own, sampling)
        infer.sampling_params = ctypes.pointer(own)
        infer.max_new_tokens = limit
        return infer, own

    def _on_result(self, result: Any, number: int | None, state: int) -> int:
        run = self._run
        if run is None or run.number != number or run.finished:
            return 0
        if state == _NORMAL:
            found = result.contents
            piece, token_id = found.text or b"", found.token_id
            run.ids.append(token_id)
        elif state == _WAITING:
            # Its bytes come with a later token.
            piece, token_id = b"", -1
            run.ids.append(result.contents.token_id if result else -1)
        else:
            _end(run, result, state)
            return 0
        tokens = run.tokens = run.tokens + 1
        if run.stopped:
            return 0
        if tokens > run.limit:
            self.abort()
            return 0
        enough = run.on_piece(piece, token_id, None)
        if tokens == run.limit:
            # A library that was told the limit is about to end by itself, with its counts.
            enough = not self._abi.sampling_per_run
        if enough:
            self.abort()
        return 0

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


def _end(run: Run, result: Any, state: int) -> None:
    if state != _FINISH:
        run.failed = True
        return
    run.finished = True
    if result:
        run.end_id, perf = result.contents.token_id, result.contents.perf
        run.prefill_tokens, run.generate_tokens = perf.prefill_tokens, perf.generate_tokens
        run.prefill_ms, run.peak_mb = perf.prefill_time_ms, perf.memory_usage_mb


def fill_sampling(struct: Any, sampling: SamplingParams) -> None:
    """Write sampling into the fields that an init's and a run's struct have in common."""
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    top_k = min(sampling.top_k, _ALL_TOKENS) if sampling.top_k > 0 else _ALL_TOKENS
    struct.top_k = 1 if greedy else top_k
    struct.top_p = 1.0 if greedy else sampling.top_p
    # Zero is divided by somewhere; one token to choose from is as greedy.
    struct.temperature = 1.0 if greedy else sampling.temperature
    struct.repeat_penalty = sampling.repetition_penalty
    struct.frequency_penalty = sampling.frequency_penalty
    struct.presence_penalty = sampling.presence_penalty
    # Its documented defaults; off.
    struct.mirostat, struct.mirostat_tau, struct.mirostat_eta = 0, 5.0, 0.1

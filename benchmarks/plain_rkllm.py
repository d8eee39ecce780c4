"""librkllmrt.so called through plain ctypes, as most bindings do, with only what a run needs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scripts import RKLLM_CONTEXT
from engine.backends.rkllm.abi.abi import ABI_13, OnResult, bind
from engine.backends.rkllm.abi.structs import LLMCallState, RKLLMInputType, RKLLMTokenInput

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)


class PlainRkllm:
    """One handle of a 1.3 library, which calls `on_result` directly."""

    def __init__(self, library: Path, model: Path, on_result: OnResult) -> None:
        self._functions = bind(ctypes.CDLL(str(library)), ABI_13)
        # Keep a reference: Python does not see the library's.
        self._callback = ABI_13.init_callback(on_result)
        self._handle = ctypes.c_void_p()
        param = self._functions.createDefaultParam()
        param.model_path = bytes(model)
        param.max_context_len = RKLLM_CONTEXT
        if (code := self._functions.init(self._handle, param, self._callback)) != 0:
            raise RuntimeError(f"rkllm_init failed with {code}")

    def run(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Generate; return when the library returns."""
        ids = (ctypes.c_int32 * len(prompt))(*prompt)
        runtime_input = ABI_13.input(role=b"user", input_type=RKLLMInputType.RKLLM_INPUT_TOKEN)
        runtime_input.token_input = RKLLMTokenInput(ids, len(prompt))
        infer = ABI_13.infer_param(max_new_tokens=max_tokens)
        if (code := self._functions.run(self._handle, runtime_input, infer, None)) != 0:
            raise RuntimeError(f"rkllm_run failed with {code}")

    def close(self) -> None:
        """Destroy the handle once."""
        self._functions.destroy(self._handle)


class RkllmSource:
    """The library as a server with a queue per request uses it: with one lock per request."""

    def __init__(self, library: Path, model: Path) -> None:
        self._lock = threading.Lock()
        self._put: Callable[[str], object]
        self._rkllm = PlainRkllm(library, model, self._on_result)

    def generate(
        self, prompt: Sequence[int], max_tokens: int, put: Callable[[str], object]
    ) -> None:
        """Put the text of each token; return after the last one."""
        with self._lock:
            self._put = put
            self._rkllm.run(prompt, max_tokens)

    def close(self) -> None:
        """Destroy the handle once."""
        self._rkllm.close()

    def _on_result(self, result: Any, number: int | None, state: int) -> int:
        if state == _NORMAL:
            self._put(result.contents.text.decode())
        return 0

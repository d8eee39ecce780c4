"""The ABIs of librkllmrt.so: one for 1.2.1-1.2.3, one for 1.3.0, one for 1.3.1.

All versions export the same symbols, and none of them returns a version. So this module cannot
detect that an ABI is used with the wrong library; `detect` chooses the ABI. Importing this module
does not load the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, Array, Structure, c_char_p, c_int, c_void_p
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from engine.backends.rkllm.abi import abi12, abi13, abi131
from engine.backends.rkllm.abi.structs import (
    LLMHandle,
    LLMResultCallback,
    RKLLMCrossAttnParam,
    RKLLMLoraAdapter,
)

OnResult = Callable[[Any, int | None, int], int]

CREATE_DEFAULT_PARAM = "rkllm_createDefaultParam"


class Signature(NamedTuple):
    """The types that ctypes needs to call a C function."""

    restype: type[Any]
    argtypes: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abi:
    """The structs and function signatures of one ABI; `name` is its value of `RKLLM_ABI`.

    `versions` are those of the library that have it, the oldest first. An ABI without the struct
    has no `sampling` or `callbacks`. Without `callbacks` init takes the result callback itself.
    """

    name: str
    versions: tuple[str, ...]
    param: type[Structure]
    input: type[Structure]
    multimodal_input: type[Structure]
    infer_param: type[Structure]
    sampling: type[Structure] | None
    callbacks: type[Structure] | None
    functions: Mapping[str, Signature]

    @property
    def sampling_per_run(self) -> bool:
        """Whether each run has its own sampling parameters and max_new_tokens."""
        return self.sampling is not None

    @property
    def versions_text(self) -> str:
        """The versions of the library that have it, as text."""
        first, *others = self.versions
        return f"{first} to {others[-1]}" if others else first

    def init_callback(self, on_result: OnResult) -> Any:
        """Return `on_result` as the third argument of init.

        The caller must keep it for as long as the handle exists: Python does not count the
        library's reference to it.
        """
        callback = LLMResultCallback(on_result)
        return callback if self.callbacks is None else self.callbacks(result_callback=callback)


def _functions(
    param: type[Structure],
    input_: type[Structure],
    infer_param: type[Structure],
    init_callback: type[Any],
) -> Mapping[str, Signature]:
    """Return the signatures of all functions; all but the first return 0 or an error code."""
    run = (LLMHandle, POINTER(input_), POINTER(infer_param), c_void_p)
    numbers = POINTER(c_int)
    calls: dict[str, tuple[Any, ...]] = {
        "rkllm_init": (POINTER(LLMHandle), POINTER(param), init_callback),
        "rkllm_load_lora": (LLMHandle, POINTER(RKLLMLoraAdapter)),
        "rkllm_destroy": (LLMHandle,),
        "rkllm_run": run,
        "rkllm_run_async": run,
        "rkllm_abort": (LLMHandle,),
        "rkllm_is_running": (LLMHandle,),
        "rkllm_clear_kv_cache": (LLMHandle, c_int, numbers, numbers),
        "rkllm_get_kv_cache_size": (LLMHandle, numbers),
        "rkllm_set_chat_template": (LLMHandle, c_char_p, c_char_p, c_char_p),
        "rkllm_set_function_tools": (LLMHandle, c_char_p, c_char_p, c_char_p),
        "rkllm_set_cross_attn_params": (LLMHandle, POINTER(RKLLMCrossAttnParam)),
    }
    signatures = {symbol: Signature(c_int, argtypes) for symbol, argtypes in calls.items()}
    return MappingProxyType({CREATE_DEFAULT_PARAM: Signature(param, ()), **signatures})


ABI_12 = Abi(
    name="1.2",
    versions=("1.2.1", "1.2.2", "1.2.3"),
    param=abi12.RKLLMParam,
    input=abi12.RKLLMInput,
    multimodal_input=abi12.RKLLMMultiModalInput,
    infer_param=abi12.RKLLMInferParam,
    sampling=None,
    callbacks=None,
    functions=_functions(
        abi12.RKLLMParam, abi12.RKLLMInput, abi12.RKLLMInferParam, LLMResultCallback
    ),
)
ABI_13 = Abi(
    name="1.3",
    versions=("1.3.0",),
    param=abi13.RKLLMParam,
    input=abi13.RKLLMInput,
    multimodal_input=abi13.RKLLMMultiModalInput,
    infer_param=abi13.RKLLMInferParam,
    sampling=abi13.RKLLMSamplingParam,
    callbacks=abi13.RKLLMCallback,
    functions=_functions(
        abi13.RKLLMParam, abi13.RKLLMInput, abi13.RKLLMInferParam, POINTER(abi13.RKLLMCallback)
    ),
)
ABI_131 = replace(
    ABI_13,
    name="1.3.1",
    versions=("1.3.1",),
    input=abi131.RKLLMInput,
    multimodal_input=abi131.RKLLMMultiModalInput,
    functions=_functions(
        abi13.RKLLMParam, abi131.RKLLMInput, abi13.RKLLMInferParam, POINTER(abi13.RKLLMCallback)
    ),
)
# The oldest first.
ABIS = MappingProxyType({abi.name: abi for abi in (ABI_12, ABI_13, ABI_131)})


class MissingSymbols(Exception):
    """The library lacks functions that all supported versions have."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        super().__init__(f"the library has no {', '.join(symbols)}")
        self.symbols = symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """A library's functions with the signatures of one ABI, by C name without `rkllm_`.

    Structs are passed as they are: ctypes passes their addresses. None is NULL. The target of a
    pointer must outlive the call, and for `run_async` the whole run.
    """

    createDefaultParam: Callable[[], Any]
    init: Callable[[c_void_p, Structure, Any], int]
    load_lora: Callable[[c_void_p, RKLLMLoraAdapter], int]
    destroy: Callable[[c_void_p], int]
    # The second argument is an array of as many inputs as init set for n_batch.
    run: Callable[[c_void_p, Structure | Array[Any], Structure, int | None], int]
    run_async: Callable[[c_void_p, Structure | Array[Any], Structure, int | None], int]
    abort: Callable[[c_void_p], int]
    # Unreliable: 1.2's header documents 0 for running, 1.3's header 1.
    is_running: Callable[[c_void_p], int]
    clear_kv_cache: Callable[[c_void_p, int, Any, Any], int]
    get_kv_cache_size: Callable[[c_void_p, Any], int]
    set_chat_template: Callable[[c_void_p, bytes, bytes, bytes], int]
    set_function_tools: Callable[[c_void_p, bytes, bytes, bytes], int]
    set_cross_attn_params: Callable[[c_void_p, RKLLMCrossAttnParam | None], int]


def bind(library: ctypes.CDLL, abi: Abi) -> Functions:
    """Return the library's functions. Raises MissingSymbols with the names of missing ones."""
    bound: dict[str, Any] = {}
    missing = []
    for symbol, signature in abi.functions.items():
        try:
            # Not getattr: it returns one shared function object for all bindings of a library.
            function = library[symbol]
        except AttributeError:
            missing.append(symbol)
            continue
        function.restype, function.argtypes = signature
        bound[symbol.removeprefix("rkllm_")] = function
    if missing:
        raise MissingSymbols(tuple(missing))
    return Functions(**bound)

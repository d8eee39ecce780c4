"""The two ways librkllmrt.so is called, as values: one for 1.2.1-1.2.3, one for 1.3.0.

Both export the same symbols and none of them tells a version, so nothing here can notice that it
is used with the other's library; that is for whoever chooses. Importing needs no library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, Array, Structure, c_char_p, c_int, c_void_p
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from engine.backends.rkllm import abi12, abi13
from engine.backends.rkllm.structs import (
    LLMHandle,
    LLMResultCallback,
    RKLLMCrossAttnParam,
    RKLLMLoraAdapter,
)

OnResult = Callable[[Any, int | None, int], int]

CREATE_DEFAULT_PARAM = "rkllm_createDefaultParam"


class Signature(NamedTuple):
    """What ctypes must know of a C function before it may be called."""

    restype: type[Any]
    argtypes: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abi:
    """One layout of the structs and calls, under the name that `RKLLM_ABI` has for it.

    `sampling` and `callbacks` are None where the layout has no such struct.
    """

    name: str
    versions: str
    param: type[Structure]
    input: type[Structure]
    multimodal_input: type[Structure]
    infer_param: type[Structure]
    sampling: type[Structure] | None
    callbacks: type[Structure] | None
    functions: Mapping[str, Signature]

    @property
    def sampling_per_run(self) -> bool:
        """Whether a run may bring sampling and max_new_tokens of its own, not only the init."""
        return self.sampling is not None

    @property
    def callback_by_value(self) -> bool:
        """Whether init takes the result callback itself, not a struct of all callbacks."""
        return self.callbacks is None

    def init_callback(self, on_result: OnResult) -> Any:
        """Return `on_result` as the third argument of init.

        Keep it for as long as the handle lives: the library holds no reference that Python sees.
        """
        callback = LLMResultCallback(on_result)
        return callback if self.callbacks is None else self.callbacks(result_callback=callback)


def _functions(
    param: type[Structure],
    input_: type[Structure],
    infer_param: type[Structure],
    init_callback: type[Any],
) -> Mapping[str, Signature]:
    """Return every function there is; all but the first answer 0 or a failure."""
    run = (LLMHandle, POINTER(input_), POINTER(infer_param), c_void_p)
    numbers = POINTER(c_int)
    calls: dict[str, tuple[Any, ...]] = {
        "rkllm_init": (POINTER(LLMHandle), POINTER(param), init_callback),
        "rkllm_load_lora": (LLMHandle, POINTER(RKLLMLoraAdapter)),
        "rkllm_load_prompt_cache": (LLMHandle, c_char_p),
        "rkllm_release_prompt_cache": (LLMHandle,),
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
    versions="1.2.1 to 1.2.3",
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
    versions="1.3.0",
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
ABIS = MappingProxyType({abi.name: abi for abi in (ABI_12, ABI_13)})


class MissingSymbols(Exception):
    """The library lacks functions that every version this engine knows has."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        super().__init__(f"the library has no {', '.join(symbols)}")
        self.symbols = symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """A library's functions as one ABI calls them, under their C names without `rkllm_`.

    Structs go in as they are, ctypes passes their addresses; None is NULL. What a pointer points
    to must outlive the call, and for `run_async` the whole run.
    """

    createDefaultParam: Callable[[], Any]
    init: Callable[[c_void_p, Structure, Any], int]
    load_lora: Callable[[c_void_p, RKLLMLoraAdapter], int]
    load_prompt_cache: Callable[[c_void_p, bytes], int]
    release_prompt_cache: Callable[[c_void_p], int]
    destroy: Callable[[c_void_p], int]
    # Of inputs there are as many as init was given for n_batch.
    run: Callable[[c_void_p, Structure | Array[Any], Structure, int | None], int]
    run_async: Callable[[c_void_p, Structure | Array[Any], Structure, int | None], int]
    abort: Callable[[c_void_p], int]
    # 1.2's header says that 0 means running, 1.3's says 1: not a thing to rely on.
    is_running: Callable[[c_void_p], int]
    clear_kv_cache: Callable[[c_void_p, int, Any, Any], int]
    get_kv_cache_size: Callable[[c_void_p, Any], int]
    set_chat_template: Callable[[c_void_p, bytes, bytes, bytes], int]
    set_function_tools: Callable[[c_void_p, bytes, bytes, bytes], int]
    set_cross_attn_params: Callable[[c_void_p, RKLLMCrossAttnParam | None], int]


def bind(library: ctypes.CDLL, abi: Abi) -> Functions:
    """Return the library's functions. Raises MissingSymbols naming those it does not have."""
    bound: dict[str, Any] = {}
    missing = []
    for symbol, signature in abi.functions.items():
        try:
            # Not getattr, which would share one function between two bindings of a library.
            function = library[symbol]
        except AttributeError:
            missing.append(symbol)
            continue
        function.restype, function.argtypes = signature
        bound[symbol.removeprefix("rkllm_")] = function
    if missing:
        raise MissingSymbols(tuple(missing))
    return Functions(**bound)

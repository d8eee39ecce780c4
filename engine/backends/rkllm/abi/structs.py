"""The structs and enums that are identical in rkllm.h 1.2.1-1.2.3 and 1.3.0.

Names, order and widths are those of the header. A test compares every size and offset with those of
a C compiler. The library reads memory by offset: one misplaced field causes a crash or silently
wrong sampling, never an error message.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_void_p,
)
from enum import IntEnum, IntFlag

LLMHandle = c_void_p


class LLMCallState(IntEnum):
    """The state that is passed to the result callback."""

    RKLLM_RUN_NORMAL = 0
    # The token's bytes are an incomplete character; they come with a later token.
    RKLLM_RUN_WAITING = 1
    RKLLM_RUN_FINISH = 2
    RKLLM_RUN_ERROR = 3


class RKLLMInputType(IntEnum):
    """Which member of the union in `RKLLMInput` is set."""

    RKLLM_INPUT_PROMPT = 0
    RKLLM_INPUT_TOKEN = 1
    RKLLM_INPUT_EMBED = 2
    RKLLM_INPUT_MULTIMODAL = 3


class RKLLMInferMode(IntEnum):
    """What a run produces."""

    RKLLM_INFER_GENERATE = 0
    RKLLM_INFER_GET_LAST_HIDDEN_LAYER = 1
    RKLLM_INFER_GET_LOGITS = 2


class CPU(IntFlag):
    """The bits of `RKLLMExtendParam.enabled_cpus_mask`."""

    CPU0 = 1 << 0
    CPU1 = 1 << 1
    CPU2 = 1 << 2
    CPU3 = 1 << 3
    CPU4 = 1 << 4
    CPU5 = 1 << 5
    CPU6 = 1 << 6
    CPU7 = 1 << 7


class CallbackAnswer(IntEnum):
    """The return values of the result callback; the header has only the numbers."""

    GO_ON = 0
    # Not an abort: the key-value cache stays, and the next run resumes this one.
    PAUSE = 1
    # Frees the hidden states or logits early; supported only by 1.3.0.
    RELEASE_OUTPUT = 2


class RKLLMExtendParam(Structure):
    """Memory, cores and batching, inside `RKLLMParam`."""

    _fields_ = (
        ("base_domain_id", c_int32),
        ("embed_flash", c_int8),
        ("enabled_cpus_num", c_int8),
        ("enabled_cpus_mask", c_uint32),
        ("n_batch", c_uint8),
        ("use_cross_attn", c_int8),
        ("reserved", c_uint8 * 104),
    )


# The last fields of every struct with sampling settings; the fields before them differ.
SAMPLING_FIELDS = (
    ("top_p", c_float),
    ("temperature", c_float),
    ("repeat_penalty", c_float),
    ("frequency_penalty", c_float),
    ("presence_penalty", c_float),
    ("mirostat", c_int32),
    ("mirostat_tau", c_float),
    ("mirostat_eta", c_float),
)


class RKLLMLoraAdapter(Structure):
    """A LoRA adapter to load, and the name that runs use for it."""

    _fields_ = (
        ("lora_adapter_path", c_char_p),
        ("lora_adapter_name", c_char_p),
        ("scale", c_float),
    )


class RKLLMEmbedInput(Structure):
    """A prompt as embeddings, `n_tokens` times the model's width."""

    _fields_ = (("embed", POINTER(c_float)), ("n_tokens", c_size_t))


class RKLLMTokenInput(Structure):
    """A prompt as token ids; the runtime applies no template to it."""

    _fields_ = (("input_ids", POINTER(c_int32)), ("n_tokens", c_size_t))


class RKLLMLoraParam(Structure):
    """The loaded LoRA adapter that a run uses."""

    _fields_ = (("lora_adapter_name", c_char_p),)


class RKLLMPromptCacheParam(Structure):
    """Whether and where a run saves its prompt cache."""

    _fields_ = (("save_prompt_cache", c_int), ("prompt_cache_path", c_char_p))


class RKLLMCrossAttnParam(Structure):
    """The encoder's output, for models with cross-attention."""

    _fields_ = (
        ("encoder_k_cache", POINTER(c_float)),
        ("encoder_v_cache", POINTER(c_float)),
        ("encoder_mask", POINTER(c_float)),
        ("encoder_pos", POINTER(c_int32)),
        ("num_tokens", c_int),
    )


class RKLLMResultLastHiddenLayer(Structure):
    """`num_tokens` rows of `embd_size` numbers."""

    _fields_ = (
        ("hidden_states", POINTER(c_float)),
        ("embd_size", c_int),
        ("num_tokens", c_int),
    )


class RKLLMResultLogits(Structure):
    """`num_tokens` rows of `vocab_size` numbers."""

    _fields_ = (("logits", POINTER(c_float)), ("vocab_size", c_int), ("num_tokens", c_int))


class RKLLMPerfStat(Structure):
    """The runtime's statistics; valid only in the FINISH callback."""

    _fields_ = (
        ("prefill_time_ms", c_float),
        ("prefill_tokens", c_int),
        ("generate_time_ms", c_float),
        ("generate_tokens", c_int),
        ("memory_usage_mb", c_float),
    )


class RKLLMResult(Structure):
    """The result callback's argument; valid, with all it points to, until the callback returns."""

    _fields_ = (
        ("text", c_char_p),
        ("token_id", c_int32),
        ("last_hidden_layer", RKLLMResultLastHiddenLayer),
        ("logits", RKLLMResultLogits),
        ("perf", RKLLMPerfStat),
    )


# (result, userdata of the run, LLMCallState) -> CallbackAnswer. If the Python function raises,
# ctypes ignores the exception and returns 0.
LLMResultCallback = CFUNCTYPE(c_int, POINTER(RKLLMResult), c_void_p, c_int)

"""What 1.2.1-1.2.3 and 1.3.0 of rkllm.h have in common.

Names, order and widths are the header's, so that whoever compares finds them; a test compares every
size and offset with what a C compiler makes of them. The library reads memory by raw offset: one
field out of place is a segfault or a silently wrong sampler, never an error message.
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
    """What a call of the result callback is about."""

    RKLLM_RUN_NORMAL = 0
    # The token's bytes are no whole character yet: they come with a later token.
    RKLLM_RUN_WAITING = 1
    RKLLM_RUN_FINISH = 2
    RKLLM_RUN_ERROR = 3


class RKLLMInputType(IntEnum):
    """Which member of `RKLLMInput`'s union is filled."""

    RKLLM_INPUT_PROMPT = 0
    RKLLM_INPUT_TOKEN = 1
    RKLLM_INPUT_EMBED = 2
    RKLLM_INPUT_MULTIMODAL = 3


class RKLLMInferMode(IntEnum):
    """What a run is to produce."""

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
    """What the result callback may return; the header has only the numbers."""

    GO_ON = 0
    # Not an abort: the key-value cache stays, and the next run resumes this one.
    PAUSE = 1
    # Frees the hidden states or logits early; only 1.3.0 knows it.
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


# The end of every list of sampling settings; what stands before it differs from struct to struct.
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
    """A LoRA to load, and the name under which runs may ask for it."""

    _fields_ = (
        ("lora_adapter_path", c_char_p),
        ("lora_adapter_name", c_char_p),
        ("scale", c_float),
    )


class RKLLMEmbedInput(Structure):
    """A prompt as embeddings, `n_tokens` times the model's width."""

    _fields_ = (("embed", POINTER(c_float)), ("n_tokens", c_size_t))


class RKLLMTokenInput(Structure):
    """A prompt as token ids, taken as it is: no template is put around it."""

    _fields_ = (("input_ids", POINTER(c_int32)), ("n_tokens", c_size_t))


class RKLLMLoraParam(Structure):
    """The loaded LoRA that a run is to use."""

    _fields_ = (("lora_adapter_name", c_char_p),)


class RKLLMPromptCacheParam(Structure):
    """Whether and where a run saves its prompt cache."""

    _fields_ = (("save_prompt_cache", c_int), ("prompt_cache_path", c_char_p))


class RKLLMCrossAttnParam(Structure):
    """The encoder's output, for models that attend to one."""

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
    """The runtime's own count; means something in the FINISH callback only."""

    _fields_ = (
        ("prefill_time_ms", c_float),
        ("prefill_tokens", c_int),
        ("generate_time_ms", c_float),
        ("generate_tokens", c_int),
        ("memory_usage_mb", c_float),
    )


class RKLLMResult(Structure):
    """What the result callback gets; valid, with all it points to, until the callback returns."""

    _fields_ = (
        ("text", c_char_p),
        ("token_id", c_int32),
        ("last_hidden_layer", RKLLMResultLastHiddenLayer),
        ("logits", RKLLMResultLogits),
        ("perf", RKLLMPerfStat),
    )


# (result, userdata of the run, LLMCallState) -> CallbackAnswer. ctypes swallows what a Python
# function raises here and answers 0.
LLMResultCallback = CFUNCTYPE(c_int, POINTER(RKLLMResult), c_void_p, c_int)

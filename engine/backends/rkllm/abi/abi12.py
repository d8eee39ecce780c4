"""The structs of 1.2.1, 1.2.2 and 1.2.3 that differ from 1.3.0; the three are identical."""

from __future__ import annotations

from ctypes import POINTER, Structure, Union, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t

from engine.backends.rkllm.abi.structs import (
    SAMPLING_FIELDS,
    RKLLMEmbedInput,
    RKLLMExtendParam,
    RKLLMLoraParam,
    RKLLMPromptCacheParam,
    RKLLMTokenInput,
)


class RKLLMParam(Structure):
    """The argument of `rkllm_init`; it fixes the sampling parameters for the handle's lifetime."""

    _fields_ = (
        ("model_path", c_char_p),
        ("max_context_len", c_int32),
        ("max_new_tokens", c_int32),
        ("top_k", c_int32),
        ("n_keep", c_int32),
        *SAMPLING_FIELDS,
        ("skip_special_token", c_bool),
        ("is_async", c_bool),
        ("img_start", c_char_p),
        ("img_end", c_char_p),
        ("img_content", c_char_p),
        ("extend_param", RKLLMExtendParam),
    )


class RKLLMMultiModalInput(Structure):
    """A prompt with image embeddings; 1.2.1 spells it RKLLMMultiModelInput."""

    _fields_ = (
        ("prompt", c_char_p),
        ("image_embed", POINTER(c_float)),
        ("n_image_tokens", c_size_t),
        ("n_image", c_size_t),
        ("image_width", c_size_t),
        ("image_height", c_size_t),
    )


class _Content(Union):
    _fields_ = (
        ("prompt_input", c_char_p),
        ("embed_input", RKLLMEmbedInput),
        ("token_input", RKLLMTokenInput),
        ("multimodal_input", RKLLMMultiModalInput),
    )


class RKLLMInput(Structure):
    """The input of a run; `input_type` names the member of the union that is set."""

    _anonymous_ = ("content",)
    _fields_ = (
        ("role", c_char_p),
        ("enable_thinking", c_bool),
        ("input_type", c_int),
        ("content", _Content),
    )


class RKLLMInferParam(Structure):
    """The parameters of a run; they include neither sampling nor length."""

    _fields_ = (
        ("mode", c_int),
        ("lora_params", POINTER(RKLLMLoraParam)),
        ("prompt_cache_params", POINTER(RKLLMPromptCacheParam)),
        ("keep_history", c_int),
    )

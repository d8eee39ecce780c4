"""The structs of 1.3.0 that differ from 1.2."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint64,
    c_void_p,
)

from engine.backends.rkllm.abi.structs import (
    SAMPLING_FIELDS,
    LLMResultCallback,
    RKLLMEmbedInput,
    RKLLMExtendParam,
    RKLLMLoraParam,
    RKLLMPromptCacheParam,
    RKLLMTokenInput,
)


class RKLLMParam(Structure):
    """The argument of `rkllm_init`; without 1.2's image tags, and with `ignore_eos_token`."""

    _fields_ = (
        ("model_path", c_char_p),
        ("max_context_len", c_int32),
        ("max_new_tokens", c_int32),
        ("top_k", c_int32),
        ("n_keep", c_int32),
        *SAMPLING_FIELDS,
        ("skip_special_token", c_bool),
        ("ignore_eos_token", c_bool),
        ("is_async", c_bool),
        ("extend_param", RKLLMExtendParam),
    )


class _Image(Structure):
    _fields_ = (
        ("image_embed", POINTER(c_float)),
        ("n_image_tokens", c_size_t),
        ("n_image", c_size_t),
        ("image_start", c_char_p),
        ("image_end", c_char_p),
        ("image_content", c_char_p),
        ("image_width", c_size_t),
        ("image_height", c_size_t),
    )


class _Video(Structure):
    _fields_ = (
        ("video_embed", POINTER(c_float)),
        ("n_frame_tokens", c_size_t),
        ("n_frame_per_video", c_size_t),
        ("n_video", c_size_t),
        ("video_start", c_char_p),
        ("video_end", c_char_p),
        ("video_content", c_char_p),
        ("frame_width", c_size_t),
        ("frame_height", c_size_t),
    )


class RKLLMMultiModalInput(Structure):
    """A prompt with image and video embeddings for its tags."""

    _fields_ = (("prompt", c_char_p), ("image", _Image), ("video", _Video))


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


class RKLLMSamplingParam(Structure):
    """The sampling parameters of one run; they replace all of the handle's."""

    _fields_ = (("top_k", c_int32), *SAMPLING_FIELDS)


class RKLLMInferParam(Structure):
    """The parameters of a run.

    If `sampling_params` is NULL or `max_new_tokens` is at most 0, init's values apply.
    """

    _fields_ = (
        ("mode", c_int),
        ("lora_params", POINTER(RKLLMLoraParam)),
        ("prompt_cache_params", POINTER(RKLLMPromptCacheParam)),
        ("sampling_params", POINTER(RKLLMSamplingParam)),
        ("keep_history", c_int),
        ("max_new_tokens", c_int32),
    )


# (userdata, text, its length in bytes, buffer for token ids, its capacity) -> number of token ids.
LLMTokenizerCallback = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32)
# (userdata, token ids, their number, buffer for embeddings, its length in bytes) -> status.
LLMGetEmbedCallback = CFUNCTYPE(c_int, c_void_p, POINTER(c_int32), c_uint64, c_void_p, c_uint64)


class RKLLMCallback(Structure):
    """The callback argument of `rkllm_init`; 1.2 takes only the result callback."""

    _fields_ = (
        ("result_callback", LLMResultCallback),
        ("result_userdata", c_void_p),
        ("tokenizer_callback", LLMTokenizerCallback),
        ("tokenizer_userdata", c_void_p),
        ("embed_callback", LLMGetEmbedCallback),
        ("embed_userdata", c_void_p),
    )

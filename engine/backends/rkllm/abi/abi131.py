"""The structs of 1.3.1 that differ from 1.3.0: the input of a run has audio too."""

from __future__ import annotations

from ctypes import POINTER, Structure, Union, c_bool, c_char_p, c_float, c_int, c_size_t

from engine.backends.rkllm.abi import abi13
from engine.backends.rkllm.abi.structs import RKLLMEmbedInput, RKLLMTokenInput


class _Audio(Structure):
    _fields_ = (
        ("audio_embed", POINTER(c_float)),
        ("n_audio_tokens", c_size_t),
        ("n_audio", c_size_t),
        ("audio_start", c_char_p),
        ("audio_end", c_char_p),
        ("audio_content", c_char_p),
    )


class RKLLMMultiModalInput(Structure):
    """A prompt with image, video and audio embeddings for its tags."""

    _fields_ = (*abi13.RKLLMMultiModalInput._fields_, ("audio", _Audio))


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

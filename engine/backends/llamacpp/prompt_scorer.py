"""The log-probabilities of a prompt's tokens, computed with llama.cpp's C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.utf8 import Utf8Decoder
from engine.errors import UnsupportedParameter
from engine.output import PromptToken

# Tokens per batch. A batch has a row of logits for each, as long as the vocabulary.
_BATCH_TOKENS = 64
_MAX_PIECE_BYTES = 512
# The first four fields of `llama_context_params` (n_ctx, n_batch, n_ubatch, n_seq_max), and their
# defaults in the version of llama.cpp that this module was written for.
_CONTEXT_FIELDS = ctypes.c_uint32 * 4
_CONTEXT_DEFAULTS = (512, 2048, 512, 1)


class _Parameters(ctypes.Structure):
    """Room for `llama_model_params` or `llama_context_params`, whose fields differ by version.

    Both are passed by value, and a callee reads only as many bytes as its own struct has.
    """

    _fields_ = (("raw", ctypes.c_uint64 * 128),)


class _Batch(ctypes.Structure):
    """`llama_batch`: without `pos` and `seq_id`, the tokens continue the only sequence."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.c_void_p),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
# The functions' result and argument types, from llama.h.
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "llama_model_default_params": (_Parameters, ()),
    "llama_context_default_params": (_Parameters, ()),
    "llama_model_load_from_file": (_POINTER, (ctypes.c_char_p, _Parameters)),
    "llama_init_from_model": (_POINTER, (_POINTER, _Parameters)),
    "llama_n_ctx": (ctypes.c_uint32, (_POINTER,)),
    "llama_set_n_threads": (None, (_POINTER, _INT, _INT)),
    "llama_model_get_vocab": (_POINTER, (_POINTER,)),
    "llama_vocab_n_tokens": (_INT, (_POINTER,)),
    "llama_token_to_piece": (
        _INT,
        (_POINTER, _INT, ctypes.c_char_p, _INT, _INT, ctypes.c_bool),
    ),
    "llama_get_memory": (_POINTER, (_POINTER,)),
    "llama_memory_clear": (None, (_POINTER, ctypes.c_bool)),
    "llama_decode": (_INT, (_POINTER, _Batch)),
    "llama_get_logits": (_POINTER, (_POINTER,)),
    "llama_free": (None, (_POINTER,)),
    "llama_model_free": (None, (_POINTER,)),
}


class PromptScorer:
    """Loads a model once more, and computes the logits after each token of a prompt.

    llama.cpp's server returns log-probabilities of generated tokens only. Its library has the
    logits of a whole prompt at the speed of a prefill. The weights are mapped from the same file,
    so this takes the memory of one more cache. Used by one thread at a time; no call can be
    aborted.

    Raises:
        UnsupportedParameter: the installed library is too different, or the model does not load.
    """

    def __init__(self, path: Path, context_length: int, threads: int) -> None:
        self._library = library = _open_library()
        parameters = library.llama_context_default_params()
        fields = _CONTEXT_FIELDS.from_buffer(parameters)
        if tuple(fields) != _CONTEXT_DEFAULTS:
            raise _unsupported("the installed version of xllamacpp is not known to this program")
        fields[:] = [context_length, _BATCH_TOKENS, _BATCH_TOKENS, 1]
        self._model = library.llama_model_load_from_file(
            str(path).encode(), library.llama_model_default_params()
        )
        if not self._model:
            raise _unsupported(f"llama.cpp could not load {path} once more, memory may be short")
        self._context = library.llama_init_from_model(self._model, parameters)
        if not self._context or library.llama_n_ctx(self._context) < context_length:
            self.close()
            raise _unsupported(f"there is no memory for another context of {context_length} tokens")
        library.llama_set_n_threads(self._context, threads, threads)
        self._vocabulary = library.llama_model_get_vocab(self._model)
        self._vocabulary_size = library.llama_vocab_n_tokens(self._vocabulary)

    def score(self, tokens: Sequence[int], alternatives: int) -> list[PromptToken]:
        """Return the tokens with their log-probabilities, each given all tokens before it.

        The first token has no log-probability. `alternatives` is the number of likeliest tokens for
        each place. The caller makes sure that the ids are in the vocabulary and fit the context.

        Raises:
            UnsupportedParameter: llama.cpp could not compute the tokens.
        """
        library, decode = self._library, Utf8Decoder().decode
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        scored = [PromptToken(decode(self._piece(tokens[0])), None, ())] if tokens else []
        for start in range(0, len(tokens) - 1, _BATCH_TOKENS):
            batch = tokens[start : min(start + _BATCH_TOKENS, len(tokens) - 1)]
            rows = self._compute_logprobs(batch)
            following = tokens[start + 1 : start + 1 + len(batch)]
            for token, row in zip(following, rows, strict=True):
                best = np.argpartition(row, -alternatives)[-alternatives:] if alternatives else ()
                top = sorted(((float(row[each]), int(each)) for each in best), reverse=True)
                scored.append(
                    PromptToken(
                        decode(self._piece(token)),
                        float(row[token]),
                        tuple((self._text(each), logprob) for logprob, each in top),
                        token,
                        int((row > row[token]).sum()) + 1,
                        tuple(each for _, each in top),
                    )
                )
        return scored

    def _compute_logprobs(self, batch: Sequence[int]) -> Any:
        """Return the log-probabilities of all tokens after each of the batch: one row for each."""
        count = len(batch)
        ids = (ctypes.c_int32 * count)(*batch)
        # All tokens have logits: by default only the last one does.
        has_logits = (ctypes.c_int8 * count)(*[1] * count)
        status = self._library.llama_decode(
            self._context,
            _Batch(
                n_tokens=count, token=ctypes.addressof(ids), logits=ctypes.addressof(has_logits)
            ),
        )
        if status != 0:
            raise _unsupported(f"llama.cpp did not compute the prompt (status {status})")
        pointer = ctypes.cast(
            self._library.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float)
        )
        logits = np.ctypeslib.as_array(pointer, (count, self._vocabulary_size))
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def _text(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "replace")

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(_MAX_PIECE_BYTES)
        size = self._library.llama_token_to_piece(
            self._vocabulary, token, buffer, _MAX_PIECE_BYTES, 0, True
        )
        return buffer.raw[: max(size, 0)]

    def close(self) -> None:
        """Free the context and the model."""
        if self._context:
            self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


def _open_library() -> Any:
    import xllamacpp.xllamacpp as extension

    # The module is llama.cpp's library too, and stays loaded with the same addresses.
    library = ctypes.CDLL(extension.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise _unsupported(f"the installed version of xllamacpp has no {name}") from None
        function.restype, function.argtypes = result, arguments
    return library


def _unsupported(reason: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"echo: {reason}", param="echo")

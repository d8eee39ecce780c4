"""Asks the grammar library inside llama.cpp about a grammar, and about an answer to it."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

# More than the structs of the library need, whose fields differ by version.
_STRUCT_BYTES = 1024
_MAX_REASON_BYTES = 400
_TOKENS = 257


class _Tokenizer(ctypes.Structure):
    """The first fields of `LlgTokenizerInit` in llguidance.h; the others are left zero."""

    _fields_ = (
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.POINTER(ctypes.c_uint32)),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("rest", ctypes.c_uint8 * _STRUCT_BYTES),
    )


class GrammarCheck:
    """Finds out what the library inside llama.cpp refuses, and which answers it did not hold.

    llama.cpp goes on without a grammar that its library refuses or cannot follow any further, and
    only its log says so. The grammars were tried with another version of the library, which knows
    other formats. The vocabulary here is all bytes, because the rules do not depend on it.
    Immutable; any thread may call it.
    """

    def __init__(self) -> None:
        self._library = library = _open_library()
        if library is None:
            return
        text = bytes(range(256)) + b"<end>"
        lengths = (ctypes.c_uint32 * _TOKENS)(*[1] * 256, 5)
        options = _Tokenizer(
            vocab_size=_TOKENS,
            tok_eos=_TOKENS - 1,
            token_lens=lengths,
            token_bytes=text,
            use_approximate_greedy_tokenize_fn=True,
        )
        message = ctypes.create_string_buffer(_MAX_REASON_BYTES)
        library.llg_new_tokenizer.restype = ctypes.c_void_p
        tokenizer = library.llg_new_tokenizer(ctypes.byref(options), message, len(message))
        if not tokenizer:
            self._library = None
            return
        self._options = ctypes.create_string_buffer(_STRUCT_BYTES)
        library.llg_constraint_init_set_defaults(self._options, ctypes.c_void_p(tokenizer))

    def find_violation(self, grammar: str) -> str | None:
        """Return why the library refuses a grammar; None if it takes it, or cannot be asked."""
        if self._library is None:
            return None
        message = ctypes.create_string_buffer(_MAX_REASON_BYTES)
        result = self._library.llg_validate_grammar(
            self._options, b"lark", grammar.encode(), message, ctypes.c_size_t(len(message))
        )
        # A positive number means warnings.
        reason = message.value.decode(errors="replace").partition("\n")[0]
        return reason or "no reason" if result < 0 else None

    def find_break(self, grammar: str, answer: str, *, is_complete: bool) -> int | None:
        """Return after how many characters an answer leaves a grammar; None if it does not.

        A complete answer leaves it at its end if the grammar has not ended there.
        """
        library = self._library
        if library is None:
            return None
        matcher = ctypes.c_void_p(library.llg_new_matcher(self._options, b"lark", grammar.encode()))
        try:
            text = answer.encode("utf-8", "surrogatepass")
            tokens, count = (ctypes.c_uint32 * len(text))(*text), ctypes.c_size_t(len(text))
            followed = max(library.llg_matcher_validate_tokens(matcher, tokens, count), 0)
            if followed < len(text):
                return len(text[:followed].decode(errors="ignore"))
            library.llg_matcher_consume_tokens(matcher, tokens, count)
            is_open = is_complete and not library.llg_matcher_is_accepting(matcher)
        finally:
            library.llg_free_matcher(matcher)
        return len(answer) if is_open else None


def _open_library() -> Any:
    """Return llama.cpp's library if it was built with llguidance, and None otherwise."""
    try:
        # The functions are in the extension module of the package.
        path = importlib.import_module("xllamacpp.xllamacpp").__file__
        library = ctypes.CDLL(str(path))
        library.llg_validate_grammar.restype = ctypes.c_int32
        _ = library.llg_new_tokenizer, library.llg_constraint_init_set_defaults
        library.llg_new_matcher.restype = ctypes.c_void_p
        library.llg_matcher_validate_tokens.restype = ctypes.c_int32
        library.llg_matcher_is_accepting.restype = ctypes.c_bool
        _ = library.llg_matcher_consume_tokens, library.llg_free_matcher
    except (ImportError, OSError, AttributeError):
        return None
    return library

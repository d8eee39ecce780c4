"""The grammar library inside llama.cpp, called as llama.cpp calls it; each byte is a token.

The library ends its process when it meets what it does not expect. So grammars are made in another
process, and its end fails the test that caused it instead of the whole run.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import xllamacpp

from engine.schema.grammar import format_grammar

# The limit with which llama.cpp makes a grammar; above it, it drops the grammar without an error.
LIMIT_OF_LLAMA_CPP = 500_000
MIN_SYMBOLS = 200
_MESSAGE_BYTES = 2_000


class _Limits(ctypes.Structure):
    _fields_ = (
        ("max_items_in_row", ctypes.c_size_t),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", ctypes.c_size_t),
        ("max_lexer_states", ctypes.c_size_t),
        ("max_grammar_size", ctypes.c_size_t),
        ("precompute_large_lexemes", ctypes.c_bool),
        ("verbose_errors", ctypes.c_bool),
    )


class _Init(ctypes.Structure):
    _fields_ = (
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("limits", _Limits),
    )


class _TokenizerInit(ctypes.Structure):
    _fields_ = (
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
    )


@cache
def _library() -> ctypes.CDLL:
    [path] = Path(xllamacpp.__file__).parent.glob("*.so")
    library = ctypes.CDLL(str(path))
    library.llg_new_tokenizer.restype = ctypes.c_void_p
    library.llg_new_matcher.restype = ctypes.c_void_p
    library.llg_matcher_get_error.restype = ctypes.c_char_p
    for name in ("llg_matcher_get_error", "llg_matcher_is_accepting", "llg_free_matcher"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.llg_matcher_consume_tokens.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
    ]
    return library


@cache
def _tokenizer() -> int:
    lengths = (ctypes.c_uint32 * 257)(*[1] * 256, 5)
    tokens = bytes(range(256)) + b"<eos>"
    init = _TokenizerInit(
        vocab_size=257,
        tok_eos=256,
        token_lens=ctypes.cast(lengths, ctypes.c_void_p),
        token_bytes=tokens,
        use_approximate_greedy_tokenize_fn=True,
    )
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    tokenizer = _library().llg_new_tokenizer(ctypes.byref(init), message, _MESSAGE_BYTES)
    assert tokenizer, message.value
    return int(tokenizer)


def _init(max_symbols: int) -> _Init:
    init = _Init()
    _library().llg_constraint_init_set_defaults(ctypes.byref(init), ctypes.c_void_p(_tokenizer()))
    # These are the library's own, and show that the fields are where this file has them.
    assert init.limits.max_grammar_size == LIMIT_OF_LLAMA_CPP
    assert init.limits.step_max_items == 50_000
    init.limits.max_grammar_size = max_symbols
    init.limits.verbose_errors = False
    init.log_stderr_level = 0
    return init


def _make(grammar: str, max_symbols: int) -> str:
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    result = _library().llg_validate_grammar(
        ctypes.byref(_init(max_symbols)), b"lark", grammar.encode(), message, _MESSAGE_BYTES
    )
    # 1 is a warning.
    return message.value.decode(errors="replace") if result < 0 else ""


class LibraryEnded(Exception):
    """The library ended its process instead of returning."""


class GrammarProcess:
    """A process with the library, which is started again when the library has ended it."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def why_not_made(self, schema: Mapping[str, Any], max_symbols: int = LIMIT_OF_LLAMA_CPP) -> str:
        """Return why llama.cpp's library makes no grammar of a schema; empty if it makes one.

        Raises:
            LibraryEnded: the library ended its process.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        try:
            return self._pool.submit(_make, format_grammar(schema), max_symbols).result()
        except BrokenProcessPool:
            self.close()
            raise LibraryEnded(f"the library ended its process for {schema}") from None

    def symbols_of(self, schema: Mapping[str, Any]) -> int:
        """Return the size of the grammar that llama.cpp's library makes, by trying limits.

        Some limits that are too small end the library's process, if an object or array of the
        schema has members of any type.
        """
        low, high = MIN_SYMBOLS, LIMIT_OF_LLAMA_CPP
        while low < high:
            middle = (low + high) // 2
            try:
                is_too_small = "too big" in self.why_not_made(schema, middle)
            except LibraryEnded:
                is_too_small = True
            if is_too_small:
                low = middle + 1
            else:
                high = middle
        return high

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class Held:
    """One answer held to a schema, as llama.cpp would hold it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._matcher = _library().llg_new_matcher(
            ctypes.byref(_init(LIMIT_OF_LLAMA_CPP)), b"lark", format_grammar(schema).encode()
        )

    @property
    def error(self) -> str:
        return (_library().llg_matcher_get_error(self._matcher) or b"").decode(errors="replace")

    def take(self, text: str) -> bool:
        """Go on with a text; return whether the schema allows it there."""
        tokens = (ctypes.c_uint32 * len(text.encode()))(*text.encode())
        return not _library().llg_matcher_consume_tokens(self._matcher, tokens, len(tokens))

    def may_end(self) -> bool:
        return bool(_library().llg_matcher_is_accepting(self._matcher))

    def close(self) -> None:
        _library().llg_free_matcher(self._matcher)


def allows(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value, as JSON on one line, is a whole answer to a schema."""
    held = Held(schema)
    try:
        assert not held.error, held.error
        return held.take(json.dumps(value)) and held.may_end()
    finally:
        held.close()

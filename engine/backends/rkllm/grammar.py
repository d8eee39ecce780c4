"""Answers held to a grammar or a JSON Schema: which tokens may come next, of llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from engine.backends.rkllm.prompts import ChatTokenizer
from engine.backends.rkllm.vocabulary import Vocabulary
from engine.errors import RequestRejected
from engine.request import SamplingParams
from engine.schema_grammar import MAX_SYMBOLS, build_grammar, check_grammar

Mask: TypeAlias = NDArray[np.bool_]

_MASK_WORD_BITS = 32
_MAX_REASON_CHARS = 300
# Before a text that a tokenizer would begin with a space of its own.
_CONTEXT_BEFORE = "\n"


class GrammarCompiler:
    """What a model's tokens are to llguidance, made once: a second and some 75 MB for 150,000.

    Only read after it is built; any thread may use it.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
        self._size = vocabulary.size
        self._ends = sorted(vocabulary.ends)
        words = TokenizerWrapper(_TokenizerAdapter(vocabulary, tokenizer))
        self._tokens = LLTokenizer(words, n_vocab=vocabulary.size, eos_token=self._ends)

    def constraint(self, sampling: SamplingParams, *, thinking: bool = False) -> Constraint | None:
        """Return what holds one answer to what was asked for, None where it may be any text.

        With `thinking` the prompt ends in the model's thoughts, which no schema is about.

        Raises:
            RequestRejected: the grammar or the schema is none, or asks for what cannot be held.
        """
        if sampling.grammar is not None:
            param, grammar = "grammar", _convert_gbnf(sampling.grammar)
        elif sampling.json_schema is not None:
            param = "json_schema"
            grammar = build_grammar(sampling.json_schema, thinking=thinking)
        else:
            return None
        without = self._ends if sampling.ignore_eos else ()
        return Constraint(self._tokens, grammar, param, self._size, without)


class Constraint:
    """One answer on its way through a grammar. Owned by the thread of the run.

    Raises:
        RequestRejected: the grammar is none, or too large.
    """

    def __init__(
        self, tokens: LLTokenizer, grammar: str, param: str, size: int, without: Sequence[int]
    ) -> None:
        self._param = param
        self._size = size
        self._without = np.array(without, np.intp)
        # Its errors would tell how far an answer had come.
        limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_SYMBOLS)
        self._matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
        self._check("cannot be followed")
        self._bits = np.zeros(-(-size // _MASK_WORD_BITS), np.uint32)

    def allowed(self) -> Mask:
        """Return for every token whether it may come next. Raises RequestRejected."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check("could not be followed any further")
        bytes_of = self._bits.astype("<u4", copy=False).view(np.uint8)
        mask: Mask = np.unpackbits(bytes_of, count=self._size, bitorder="little").view(np.bool_)
        mask[self._without] = False
        return mask

    def take(self, token: int, *, forced: bool) -> list[int]:
        """Go on with a token; return those that can only follow it, gone on with too if `forced`.

        They cost no look at the model, and are the ones it knows the text by. Raises
        RequestRejected.
        """
        self._matcher.consume_token(token)
        after = self._matcher.compute_ff_tokens() if forced else []
        # Of a text with a character that is in no token, not all of them fit.
        taken = after[: self._matcher.try_consume_tokens(after)]
        self._check("could not be followed any further")
        return taken

    @property
    def over(self) -> bool:
        """Whether there is nothing left to say but the end."""
        return self._matcher.is_stopped()

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            # Of several lines, some with what stands in for what it was told not to tell.
            why = shorten(
                self._matcher.get_error().replace("<non-verbose/>", ""), _MAX_REASON_CHARS
            )
            raise RequestRejected(f"{self._param}: it {what}: {why}", param=self._param)


class _TokenizerAdapter:
    """A vocabulary as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
        self._piece = vocabulary.piece
        self._encode = tokenizer.encode
        self.eos_token_id = min(vocabulary.ends)
        self.special_token_ids = [*vocabulary.special]
        self.tokens = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self._bytes = {
            piece[0]: token for token, piece in enumerate(self.tokens) if len(piece) == 1
        }

    def __call__(self, given: bytes) -> list[int]:
        """Return the tokens of a text that stands in the middle of another.

        They have to be that text, or nothing would be allowed where it can only be this one.
        """
        text = given.decode()
        for tokens in (self._encode(text, special=False), self._within(text)):
            if b"".join(map(self._piece, tokens)) == given:
                return tokens
        # There is a special token's name in it, which the tokenizer takes for that token, or what
        # it never writes, as one without capitals: byte by byte both can be said.
        return [self._bytes[byte] for byte in given if byte in self._bytes]

    def _within(self, text: str) -> list[int]:
        before = self._encode(_CONTEXT_BEFORE, special=False)
        return self._encode(_CONTEXT_BEFORE + text, special=False)[len(before) :]


def _convert_gbnf(grammar: str) -> str:
    check_grammar(grammar)
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:
        # It raises nothing more exact for a rule that is missing.
        why = shorten(str(error), _MAX_REASON_CHARS)
        raise RequestRejected(f"grammar: it is no GBNF: {why}", param="grammar") from error

"""Restrict answers to a grammar or a JSON Schema: compute the allowed tokens with llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import RequestRejected
from engine.prompts.reasoning import Thinking
from engine.request import SamplingParams
from engine.schema.client_grammar import prepare_grammar
from engine.schema.grammar import build_grammar
from engine.schema.trial import MAX_GRAMMAR_SYMBOLS

Mask: TypeAlias = NDArray[np.bool_]

_MASK_WORD_BITS = 32
_MAX_REASON_CHARS = 300
# Precedes a text that is tokenised as the middle of another; without it some tokenizers would add
# a space at the start.
_CONTEXT_BEFORE = "\n"


class GrammarCompiler:
    """A model's vocabulary in llguidance's format, from which constraints are built.

    Building it takes about a second and 75 MB for 150,000 tokens, so it is built once. Immutable
    and thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
        self._size = vocabulary.size
        self._end_tokens = sorted(vocabulary.end_tokens)
        adapter = TokenizerWrapper(_TokenizerAdapter(vocabulary, tokenizer))
        self._tokenizer = LLTokenizer(adapter, n_vocab=vocabulary.size, eos_token=self._end_tokens)

    def build_constraint(
        self, sampling: SamplingParams, thinking: Thinking = "none"
    ) -> Constraint | None:
        """Return the constraint for a request's grammar or schema; None if it has neither.

        Raises:
            RequestRejected: the grammar or the schema is invalid or not supported.
        """
        if sampling.grammar is not None:
            param = "grammar"
            grammar = prepare_grammar(sampling.grammar, thinking)
        elif sampling.json_schema is not None:
            param = "json_schema"
            grammar = build_grammar(sampling.json_schema, thinking)
        else:
            return None
        excluded_tokens = self._end_tokens if sampling.ignore_eos else ()
        return Constraint(self._tokenizer, grammar, param, self._size, excluded_tokens)


class Constraint:
    """The state of one answer in its grammar. Owned by the thread of the run.

    `param` names the request's field in errors. `excluded_tokens` are never allowed.

    Raises:
        RequestRejected: the grammar is invalid or too large.
    """

    def __init__(
        self,
        tokens: LLTokenizer,
        grammar: str,
        param: str,
        size: int,
        excluded_tokens: Sequence[int],
    ) -> None:
        self._param = param
        self._size = size
        self._excluded_tokens = np.array(excluded_tokens, np.intp)
        # Verbose errors would contain parts of the answer.
        limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_GRAMMAR_SYMBOLS)
        self._matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
        self._raise_on_error("cannot be followed")
        self._mask_words = np.zeros(-(-size // _MASK_WORD_BITS), np.uint32)

    def allowed_tokens(self) -> Mask:
        """Return a mask of the tokens that may come next. Raises RequestRejected."""
        self._matcher.unsafe_compute_mask_ptr(self._mask_words.ctypes.data, self._mask_words.nbytes)
        self._raise_on_error("could not be followed any further")
        mask_bytes = self._mask_words.astype("<u4", copy=False).view(np.uint8)
        mask: Mask = np.unpackbits(mask_bytes, count=self._size, bitorder="little").view(np.bool_)
        mask[self._excluded_tokens] = False
        return mask

    def advance(self, token: int, *, fast_forward: bool) -> list[int]:
        """Consume a token; with `fast_forward` also consume and return the tokens forced after it.

        Forced tokens need no sampling. They are the tokens that the tokenizer itself would use for
        that text. Raises RequestRejected.
        """
        self._matcher.consume_token(token)
        forced_tokens = self._matcher.compute_ff_tokens() if fast_forward else []
        # Not all of them are valid if the text contains a character that no token has.
        accepted_tokens = forced_tokens[: self._matcher.try_consume_tokens(forced_tokens)]
        self._raise_on_error("could not be followed any further")
        return accepted_tokens

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is complete (only an end token is allowed)."""
        return self._matcher.is_stopped()

    def _raise_on_error(self, problem: str) -> None:
        if self._matcher.is_error():
            # The error has several lines and placeholders for the suppressed details.
            reason = shorten(
                self._matcher.get_error().replace("<non-verbose/>", ""), _MAX_REASON_CHARS
            )
            raise RequestRejected(f"{self._param}: it {problem}: {reason}", param=self._param)


class _TokenizerAdapter:
    """Adapts a vocabulary to the tokenizer interface of llguidance."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokenizer: ChatTokenizer) -> None:
        self._piece = vocabulary.piece
        self._encode = tokenizer.encode
        self.eos_token_id = min(vocabulary.end_tokens)
        self.special_token_ids = [*vocabulary.special_tokens]
        self.tokens = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self._bytes = {
            piece[0]: token for token, piece in enumerate(self.tokens) if len(piece) == 1
        }

    def __call__(self, text_bytes: bytes) -> list[int]:
        """Return the tokens of a text in the middle of another text.

        Their bytes must equal the text; otherwise no token would be allowed where the grammar
        forces this text.
        """
        text = text_bytes.decode()
        for tokens in (self._encode(text, special=False), self._encode_in_context(text)):
            if b"".join(map(self._piece, tokens)) == text_bytes:
                return tokens
        # The text contains the name of a special token, which the tokenizer parses, or characters
        # that it normalises (such as capitals in a lower-case vocabulary). Use byte tokens instead.
        return [self._bytes[byte] for byte in text_bytes if byte in self._bytes]

    def _encode_in_context(self, text: str) -> list[int]:
        context_tokens = self._encode(_CONTEXT_BEFORE, special=False)
        return self._encode(_CONTEXT_BEFORE + text, special=False)[len(context_tokens) :]

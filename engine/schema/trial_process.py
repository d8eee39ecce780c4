"""The process in which grammars are tried.

Started by `GrammarTrials` as `python -m engine.schema.trial_process`. Each line of its input is a
notation and a text in JSON, each line of its output the members of a `Trial`. It may end at any
grammar: by a fault of the library, by its own limits on memory and processor time.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import product
from string import ascii_lowercase
from textwrap import shorten
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from common.process_utils import ignore_signals
from engine.schema.gbnf import convert_gbnf
from engine.schema.grammar import SCHEMA_OPTIONS
from engine.schema.schema_limits import find_schema_excess
from engine.schema.trial import MAX_ANSWERS_CPU_S, MAX_GRAMMAR_SYMBOLS, MAX_PREPARATION_CPU_S

_MAX_MEMORY_BYTES = 2**30
# Half of what the threads of an engine have: a grammar that passes here has room there.
_STACK_BYTES = 4 * 2**20
_MAX_REASON_CHARS = 300
# Answers that are begun with a grammar, and the bytes of each. Some grammars are small, and their
# cost shows only in an answer.
_ANSWERS, _ANSWER_BYTES = 2, 40
# One more answer repeats each byte while it is allowed, which takes microseconds for most grammars.
# It gets to what costs only after a text, and to what costs more with each byte. A longer one would
# refuse lists that recurse to the right, as many are written: their cost grows with the cube.
_LONG_ANSWER_BYTES, _BYTES_AT_ONCE = 400, 20
_JSON_RULE = re.compile(r"%json\s*(?=\{)")
_PRINTABLE = range(32, 127)


class _Vocabulary:
    """A small vocabulary: all bytes, pairs of printable ones, three letters, and an end token.

    The longer ones begin to show what a model's tokens cost.
    """

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.tokens.append(b"<end>")
        self.tokens += [bytes(each) for each in product(_PRINTABLE, repeat=2)]
        self.tokens += [bytes(each) for each in product(ascii_lowercase.encode(), repeat=3)]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def try_lark(tokenizer: LLTokenizer, rules: str) -> str | None:
    """Return why Lark's rules cannot be followed; None if they can."""
    for schema in _find_schemas(rules):
        if (excess := find_schema_excess(schema)) is not None:
            return f"a schema in it: {excess}"
    return _try(tokenizer, LLMatcher.grammar_from_lark(rules))


def try_schema(tokenizer: LLTokenizer, text: str) -> str | None:
    """Return why answers cannot be held to a JSON Schema; None if they can."""
    if (excess := find_schema_excess(json.loads(text))) is not None:
        return excess
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=SCHEMA_OPTIONS)
    except ValueError as error:
        # It also refuses JSON with more than 128 levels.
        return str(error)
    return _try(tokenizer, grammar)


def _find_schemas(rules: str) -> Iterator[dict[str, Any]]:
    """Yield the schemas in Lark's rules; the library refuses what is no JSON."""
    decoder = json.JSONDecoder()
    for match in _JSON_RULE.finditer(rules):
        try:
            schema, _ = decoder.raw_decode(rules, match.end())
        except (ValueError, RecursionError):
            continue
        yield schema


def _try(tokenizer: LLTokenizer, grammar: str) -> str | None:
    limits = LLParserLimits(verbose_errors=False, max_grammar_size=MAX_GRAMMAR_SYMBOLS)
    has_failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if has_failed:
        return messages[0]
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    choose = random.Random(0)  # noqa: S311 - the same answers each time
    signal.setitimer(signal.ITIMER_PROF, MAX_ANSWERS_CPU_S)
    for _ in range(_ANSWERS):
        matcher.reset()
        for _ in range(_ANSWER_BYTES):
            byte = _choose_byte(matcher, choose)
            if byte is None:
                break
            matcher.consume_token(byte)
        if matcher.is_error():
            return _read_error(matcher)
    signal.setitimer(signal.ITIMER_PROF, MAX_ANSWERS_CPU_S)
    matcher.reset()
    _follow_long(matcher, choose)
    return _read_error(matcher) if matcher.is_error() else None


def _choose_byte(matcher: LLMatcher, choose: random.Random) -> int | None:
    """Return a byte that the answer may go on with; None at its end or after an error."""
    mask = matcher.compute_bitmask()
    allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
    if matcher.is_error() or not allowed:
        return None
    printable = [byte for byte in allowed if byte in _PRINTABLE]
    return choose.choice(printable or allowed)


def _follow_long(matcher: LLMatcher, choose: random.Random) -> None:
    """Begin a long answer; stop at its end or at an error of the matcher."""
    length = 0
    while length < _LONG_ANSWER_BYTES:
        byte = _choose_byte(matcher, choose)
        if byte is None:
            return
        repeated = _BYTES_AT_ONCE
        while repeated == _BYTES_AT_ONCE and length < _LONG_ANSWER_BYTES:
            repeated = matcher.try_consume_tokens([byte] * _BYTES_AT_ONCE)
            length += repeated


def _read_error(matcher: LLMatcher) -> str:
    return matcher.get_error().replace("<non-verbose/>", "")


def serve() -> None:
    """Try grammars until the input ends."""
    vocabulary = _Vocabulary()
    tokenizer = LLTokenizer(
        TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=[256]
    )
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, MAX_PREPARATION_CPU_S)
        notation, text = json.loads(line)
        try:
            grammar, violation = _run(tokenizer, notation, text)
        except BaseException as error:
            # A panic of the library is no `Exception`. Another grammar may follow.
            grammar, violation = "", f"the library failed: {error or type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        if violation is not None:
            violation = shorten(violation, _MAX_REASON_CHARS, placeholder="…")
        sys.stdout.buffer.write(json.dumps([grammar, violation]).encode() + b"\n")
        sys.stdout.buffer.flush()


def _run(tokenizer: LLTokenizer, notation: str, text: str) -> tuple[str, str | None]:
    if notation == "schema":
        return "", try_schema(tokenizer, text)
    if notation == "gbnf":
        try:
            text = convert_gbnf(text)
        except ValueError as error:
            return "", str(error)
    return text, try_lark(tokenizer, text)


if __name__ == "__main__":
    ignore_signals()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > _MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, hard))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()

"""Translate GBNF, llama.cpp's notation of grammars, to Lark."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

# Texts and classes of characters, comments, references to tokens, and names of rules.
_PART = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|!?<[^\s>]*>|[A-Za-z][\w-]*', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
# The name that the converter gives to the rule `root`.
_START, _RENAMED = "start", "start-of-gbnf"


def convert_gbnf(grammar: str) -> str:
    """Return a grammar in Lark.

    Raises:
        ValueError: it is no GBNF, or it refers to tokens, which have no form in Lark here.
    """
    try:
        return str(gbnf_to_lark(_PART.sub(_convert_part, grammar)))
    except Exception as error:
        # The converter raises a plain `Exception` for a missing rule.
        raise ValueError(f"it is no GBNF: {error}") from error


def _convert_part(match: re.Match[str]) -> str:
    """Return a part of the grammar as the library's converter can read it."""
    part = match[0]
    if part[0] in '"[':
        return _ESCAPE.sub(_unescape, part)
    if part[0] in "!<":
        raise ValueError(f"tokens such as {part[:50]} are not supported, only texts are")
    return _RENAMED if part == _START else part


def _unescape(match: re.Match[str]) -> str:
    """Return a character instead of its code; the converter writes codes that Lark cannot read."""
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]

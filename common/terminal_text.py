"""Make untrusted text safe for terminals and logs, so that it cannot control the terminal.

Text from clients, workers, models and file names may contain escape sequences, 8-bit controls (C1)
and marks that reorder text (bidi). All such text passes through one of these functions before it is
written to a terminal or a log line.
"""

from __future__ import annotations

import re
import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Needed for Persian, Indic scripts and joined emoji; they neither move nor hide text.
_JOINERS = "\u200c\u200d"
# All characters except printable ASCII. Lines of printable text are returned without a search.
_NOT_ASCII = re.compile(r"[^ -~]")


def escape_controls(text: str) -> str:
    """Return a text as one line, with every character that is not printable written as `\\xNN`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def escape_lines(text: str) -> str:
    """Return a message as `escape_controls` does, but keep its line feeds and tabs."""
    return "\n".join("\t".join(map(escape_controls, line.split("\t"))) for line in text.split("\n"))


def replace_controls(text: str) -> str:
    """Return a model's answer with line feeds and tabs, and other controls replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(each if _is_harmless(each) else _REPLACEMENT for each in text)


def escape_json(json_text: str) -> str:
    """Return the same JSON, with every character that is not printable written as `\\uNNNN`.

    JSON has such characters only inside strings, so the values stay the same. JSON encoders escape
    only the controls below U+0020.
    """
    if json_text.isprintable():
        return json_text
    return _NOT_ASCII.sub(lambda match: _escape_in_json(match[0]), json_text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escape_in_json(character: str) -> str:
    # A line feed between the values of indented JSON is layout.
    if character.isprintable() or character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index : index + 2].hex()}" for index in range(0, len(units), 2))


def _is_harmless(character: str) -> bool:
    return (
        character.isprintable()
        or character in "\n\t"
        or character in _JOINERS
        or unicodedata.category(character) == "Zs"
    )

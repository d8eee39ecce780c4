"""A readable difference of two JSON values, of bounded length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import unified_diff
from typing import Any

from common.terminal_text import escape_controls

MAX_LINES = 60
MAX_LINE_CHARS = 200
# The time of a comparison grows with the square of the number of lines.
_MAX_COMPARED_LINES = 2_000


def diff_json(expected: Any, actual: Any) -> Sequence[str]:
    """Return the lines of a unified diff of two values; they are safe for a terminal."""
    before, after = _format(expected), _format(actual)
    lines = list(
        unified_diff(
            before[:_MAX_COMPARED_LINES],
            after[:_MAX_COMPARED_LINES],
            "expected",
            "actual",
            lineterm="",
        )
    )
    if not lines:
        return [f"(they differ after line {_MAX_COMPARED_LINES:,} of the formatted JSON)"]
    shortened = [_shorten(escape_controls(line)) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shortened.append(f"… ({len(lines) - MAX_LINES:,} more lines)")
    return shortened


def _format(value: Any) -> list[str]:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).split("\n")


def _shorten(line: str) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]}… ({len(line) - MAX_LINE_CHARS:,} more characters)"

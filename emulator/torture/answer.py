"""The answers that the server gives: known texts, which an honest client prints unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

# The tool that a client may offer; a request that offers it is answered by a call of it.
TOOL_NAME = "report"
MODEL_NAME = "scripted"
# Characters of one to four bytes, line separators, quotes and what looks like markup or an event.
_PIECES = (
    "Grüße aus Zürich:",
    " 4 < 5 & \"so\" 'weiter'\\n.",
    "\n\n\tΣ 日本語, ",
    "🍎 und 👩‍🚀",
    ",\u2028then\u0085more:\n\ndata: 1\n\n",
    "</b> ",
    "{} … the end.",
)
ANSWER = "".join(_PIECES)
_ARGUMENTS = {"city": "Zürich 🍎", "note": 'a "quoted"\nline', "count": 3}
ARGUMENTS = json.dumps(_ARGUMENTS, ensure_ascii=False)
# Slowly enough for several events, which depend on nothing: a verdict is the same for one event.
_DELAY_MS = 8


def build_script() -> dict[str, Any]:
    """Return the script of the engine."""
    cuts = (*range(0, len(ARGUMENTS), 14), len(ARGUMENTS))
    arguments = [ARGUMENTS[start:end] for start, end in pairwise(cuts)]
    call = [
        "<tool_call>\n",
        f'{{"name": "{TOOL_NAME}", "arguments": ',
        *arguments,
        "}\n</tool_call>",
    ]
    return {
        "slots": 8,
        "context_length": 100_000,
        "answers": [
            {"when": f'"name": ?"{TOOL_NAME}"', "pieces": call, "delay_ms": _DELAY_MS},
            {"pieces": list(_PIECES), "delay_ms": _DELAY_MS},
        ],
    }


def is_same_answer(printed: str, answer: str, *, is_call: bool) -> bool:
    """Return whether a client printed an answer; of arguments, only their value counts."""
    if printed.rstrip("\r\n") == answer:
        return True
    return is_call and _parse_object(printed) == _parse_object(answer)


def is_part_of(printed: str, answer: str) -> bool:
    """Return whether all that was printed is from the answer, in its order, with parts missing."""
    characters = iter(answer)
    return all(character in characters for character in printed.rstrip("\r\n"))


def _parse_object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

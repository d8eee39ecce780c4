"""What the programs beside this have in common: what they are asked, and how they tell of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the server is, and what to ask so that it refuses, by the status it refuses with."""

    base_url: str
    key: str
    model: str
    refused: dict[str, dict[str, Any]]


def asked() -> Asked:
    """Return what the program was started with."""
    return Asked(**json.loads(sys.argv[1]))


def tell(scenario: str, **seen: Any) -> None:
    """Write what was seen as a line of its own."""
    sys.stdout.write(json.dumps({"scenario": scenario, **seen}) + "\n")


def failure(error: BaseException) -> dict[str, Any]:
    """Return what an exception is to who catches it: its classes, its status, its words."""
    return {
        "raised": [cls.__name__ for cls in type(error).__mro__],
        "status": getattr(error, "status_code", None),
        "said": str(error),
    }


# Longer than the context of the server's model.
LONG_TEXT = "word " * 5000


def turns(text: str) -> list[Any]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": text}]

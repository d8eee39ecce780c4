"""The `usage` object of OpenAI's answers."""

from __future__ import annotations

from typing import Any


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """Return the `usage` object for these numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }

"""What answers of OpenAI's routes tell of their tokens."""

from __future__ import annotations

from typing import Any


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """Return a call's `usage`."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }

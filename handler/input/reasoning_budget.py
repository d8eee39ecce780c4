"""Read how many tokens a model may think before it answers.

vLLM calls the limit `thinking_token_budget`, llama.cpp `reasoning_budget`, SGLang
`max_thinking_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest

BUDGET_KEYS = frozenset({"max_thinking_tokens", "reasoning_budget", "thinking_token_budget"})
_MAX_BUDGET = 2**31 - 1
_UNLIMITED = -1


def read_reasoning_budget(body: Mapping[str, Any], path: str = "") -> int | None:
    """Return the limit of a request; None without one. Raises InvalidRequest."""
    if body.keys().isdisjoint(BUDGET_KEYS):
        return None
    names = [name for name in sorted(BUDGET_KEYS & body.keys()) if body[name] is not None]
    budgets = {name: read_budget(body[name], path + name) for name in names}
    if len(set(budgets.values())) > 1:
        first, second, *_ = budgets
        raise InvalidRequest(f"{path}{second} must not come with {first}", path + second)
    return next(iter(budgets.values()), None)


def read_budget(value: Any, param: str) -> int | None:
    """Return the limit in one field; None for null and for -1. Raises InvalidRequest."""
    if value is None:
        return None
    is_integer = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_integer or not _UNLIMITED <= value <= _MAX_BUDGET:
        raise InvalidRequest(
            f"{param} must be a number of tokens, or -1 for any, got {describe_value(value)}", param
        )
    return None if value == _UNLIMITED else int(value)

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
    budgets: dict[str, int] = {}
    for name in sorted(BUDGET_KEYS & body.keys()):
        value = body[name]
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value != int(value) or not _UNLIMITED <= value <= _MAX_BUDGET:
            raise InvalidRequest(
                f"{path}{name} must be a number of tokens, or -1 for any, "
                f"got {describe_value(value)}",
                path + name,
            )
        budgets[name] = int(value)
    if len(set(budgets.values())) > 1:
        first, second, *_ = budgets
        raise InvalidRequest(f"{path}{second} must not come with {first}", path + second)
    budget = next(iter(budgets.values()), _UNLIMITED)
    return None if budget == _UNLIMITED else budget

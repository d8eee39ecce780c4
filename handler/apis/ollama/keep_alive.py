"""Read how long a model stays loaded after a request."""

from __future__ import annotations

import math
import re
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
# A year; longer times mean the same as forever.
_MAX_S = 365 * 86400.0


def read_keep_alive(value: Any) -> float | None:
    """Return the seconds, infinite for a negative time; None if it is not set.

    A number is in seconds; a string is a Go duration such as "5m" or "1h30m", or a number.
    Raises InvalidRequest.
    """
    if value is None:
        return None
    seconds = _parse(value)
    if seconds is None:
        raise InvalidRequest(
            f'keep_alive must be a number of seconds or a duration such as "5m", '
            f"got {describe_value(value)}",
            "keep_alive",
        )
    return math.inf if seconds < 0 or seconds > _MAX_S else seconds


def _parse(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None if math.isnan(value) else max(-1.0, min(float(value), 2 * _MAX_S))
    if not isinstance(value, str) or len(value) > 40:
        return None
    if _NUMBER.fullmatch(value):
        return float(value)
    sign, text = (-1, value[1:]) if value.startswith("-") else (1, value.removeprefix("+"))
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)

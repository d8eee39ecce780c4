"""Read durations as Go writes them, such as "5m" or "1h30m"."""

from __future__ import annotations

import math
import re

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
_MAX_CHARS = 40
_YEAR_S = 365 * 86400.0


def parse_duration_s(value: object) -> float | None:
    """Return the seconds of a number or of a text; None for anything else.

    A number, also as text, is in seconds.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and math.isnan(value):
            return None
        # Larger whole numbers are no floats.
        return float(max(-1e18, min(value, 1e18)))
    if not isinstance(value, str) or len(value) > _MAX_CHARS:
        return None
    if _NUMBER.fullmatch(value):
        return float(value)
    sign, text = (-1, value[1:]) if value.startswith("-") else (1, value.removeprefix("+"))
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def parse_keep_alive_s(value: object) -> float | None:
    """Return the seconds; infinite for a negative time and for more than a year.

    None if the text is no duration.
    """
    seconds = parse_duration_s(value)
    if seconds is None:
        return None
    return math.inf if seconds < 0 or seconds > _YEAR_S else seconds

"""How long a model stays loaded after a request."""

from __future__ import annotations

from typing import Any

from common.durations import parse_keep_alive_s
from common.value_description import describe_value
from engine import Engine
from handler.errors import InvalidRequest


def read_keep_alive(value: Any) -> float | None:
    """Return the seconds, infinite for a negative time; None if it is not set.

    A number is in seconds; a string is a Go duration such as "5m" or "1h30m", or a number.
    Raises InvalidRequest.
    """
    if value is None or value == "":
        return None
    if (seconds := parse_keep_alive_s(value)) is None:
        raise InvalidRequest(
            'keep_alive must be a number of seconds or a duration such as "5m", '
            f"got {describe_value(value)}",
            "keep_alive",
        )
    return seconds


def keep_loaded(engine: Engine, seconds: float | None) -> None:
    """Keep a model loaded for some time after its requests, if models are unloaded at all."""
    if engine.residency is not None and seconds is not None:
        engine.residency.keep_alive(seconds)

"""When a file is to be forgotten, as clients say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handler.errors import InvalidRequest
from handler.sampling import describe_value

ANCHOR = "created_at"
LEAST_S, MOST_S = 3_600, 2_592_000


def read_expiry(given: Any, name: str) -> int | None:
    """Return for how many seconds a file is kept; None where nothing is said.

    Raises:
        InvalidRequest: it is not `{"anchor": "created_at", "seconds": …}`.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{name} must be an object, got {describe_value(given)}", name)
    if given.get("anchor") != ANCHOR:
        raise InvalidRequest(
            f"{name}.anchor must be {ANCHOR}, got {describe_value(given.get('anchor'))}",
            f"{name}.anchor",
        )
    seconds = given.get("seconds")
    if type(seconds) is not int or not LEAST_S <= seconds <= MOST_S:
        raise InvalidRequest(
            f"{name}.seconds must be a whole number from {LEAST_S} to {MOST_S}, "
            f"got {describe_value(seconds)}",
            f"{name}.seconds",
        )
    return seconds

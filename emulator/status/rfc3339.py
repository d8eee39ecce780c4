"""Times in the format of RFC 3339, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(seconds: float) -> str:
    """Return a wall-clock time, such as `2026-11-27T09:30:00.250000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def parse_time(text: str) -> float:
    """Return the wall-clock time in seconds. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it has no UTC offset")
    return moment.timestamp()

"""Read numbers from text that clients or files contain."""

from __future__ import annotations


def parse_digits(text: str, max_digits: int) -> int | None:
    """Return a number that is written in at most `max_digits` ASCII digits; None for another text.

    `str.isdigit` alone also accepts "²", and `int` takes time for a very long number.
    """
    if text.isascii() and text.isdigit() and len(text) <= max_digits:
        return int(text)
    return None

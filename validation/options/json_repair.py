"""Repairs the JSON of an answer: quotes, commas, brackets, comments and text around it."""

from __future__ import annotations

from validation.options import MissingPart

# The library takes up to a second for hostile texts of this length.
MAX_CHARS = 50_000


class JsonRepairer:
    """Repairs JSON with the library json-repair. Any thread may call it.

    Raises:
        MissingPart: json-repair is not installed.
    """

    def __init__(self) -> None:
        try:
            from json_repair import repair_json
        except ImportError:
            raise MissingPart("Repairing JSON", "json-repair") from None
        self._repair_json = repair_json

    def repair(self, text: str) -> str | None:
        """Return the object or array that a text means, as JSON; None if it means none."""
        if len(text) > MAX_CHARS:
            return None
        try:
            repaired = str(self._repair_json(text, ensure_ascii=False))
        except (RecursionError, ValueError):
            # A thousand levels, or a number that is no JSON.
            return None
        return repaired if repaired.startswith(("{", "[")) else None

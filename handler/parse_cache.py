"""What was read of a body, kept for the next one that says the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, Generic, TypeVar

from handler.json_size import exceeds

T = TypeVar("T")

_MOST = 64
# Longer words are rarely said twice.
_MOST_CHARS = 2_000
# A body with more fields is no repeated one, and going through all of them takes time.
_MOST_FIELDS = 200


class ParseCache(Generic[T]):
    """Remembers what the last few wordings were read as.

    Applications and files of prompts ask for the same parameters again and again, and to read them
    takes longer than all else in a call. What is wrong is read again each time, for its message.
    Values are shared by all who ask: they must not be changed. Any thread may ask.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Hashable, str], T] = {}

    def get(
        self,
        body: Mapping[str, Any],
        matters: Set[str],
        read: Callable[[], T],
        context: Hashable = None,
    ) -> T:
        """Return what `read` returns for a body of which only the fields in `matters` do.

        `context` is what else the reading depends on. Raises what `read` raises.
        """
        if len(body) > _MOST_FIELDS:
            return read()
        asked = [(name, body[name]) for name in body if name in matters]
        if exceeds(asked, _MOST_CHARS):
            return read()
        try:
            # Unlike equality it tells 1 from 1.0 and from true.
            words = repr(asked)
        except (RecursionError, ValueError):
            # Nested, or a number, beyond what Python writes.
            return read()
        if len(words) > _MOST_CHARS:
            return read()
        key = (context, words)
        found = self._found.get(key)
        if found is None:
            found = read()
            if len(self._found) >= _MOST:
                self._found.clear()
            self._found[key] = found
        return found

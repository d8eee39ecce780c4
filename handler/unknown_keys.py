"""Warnings about keys of a request that are misspelled or in the wrong object (R61)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any

from handler.parameter_names import SYNONYMS, asks_for_nothing
from handler.sampling import describe_value

# Of one object. Comparing a key with the known ones takes about a millisecond the first time.
MAX_COMPARED = 16
# Keys of one object that are looked at. Requests have some tens.
MAX_LOOKED_AT = 1_000
# Longer keys are not misspelled names. Shorter ones resemble too many.
MAX_CHARS, MIN_CHARS = 48, 3
# A wrong letter in a name of four leaves three quarters of it.
_SIMILARITY = 0.75
_NOTHING: Mapping[str, str] = MappingProxyType({})


class KnownKeys:
    """The keys of one JSON object of a request, and advice about keys that do not belong there.

    `path` is written before a key in a warning, e.g. "input.". `elsewhere` maps a key to the path
    of the object it belongs to; the empty path is the request itself. `notes` maps a key to the
    rest of the sentence about it, e.g. "is not supported and was ignored". `ignored` are keys whose
    warnings come from the code that reads the object.

    With `names_all` every unknown key has a warning; without it, those that resemble a known key.

    Unknown keys never fail a request (R16). Immutable, for use by any thread.
    """

    def __init__(
        self,
        path: str,
        keys: Collection[str],
        *,
        elsewhere: Mapping[str, str] = _NOTHING,
        notes: Mapping[str, str] = _NOTHING,
        ignored: Collection[str] = (),
        names_all: bool = False,
    ) -> None:
        self.keys = frozenset(keys) | frozenset(ignored)
        self._path = path
        self._elsewhere = {name: at for name, at in elsewhere.items() if name not in self.keys}
        self._notes = {name: note for name, note in notes.items() if name not in self.keys}
        self._names_all = names_all
        # By its letters and digits alone, so that maxTokens and max-tokens are max_tokens. The
        # later ones win: a key of this object is a better suggestion than one of another.
        unsupported = self._notes.keys() | (frozenset(ignored) - frozenset(keys))
        self._suggestions: dict[str, str] = {
            _letters(name): f"{name}, which is not supported here" for name in unsupported
        }
        self._suggestions |= {_letters(name): at + name for name, at in self._elsewhere.items()}
        self._suggestions |= {_letters(name): path + name for name in keys}
        for synonym, name in SYNONYMS.items():
            if (full := self._suggestions.get(_letters(name))) is not None:
                self._suggestions.setdefault(_letters(synonym), full)
        self._comparable = [name for name in self._suggestions if len(name) > MIN_CHARS]
        # Applications repeat the same key in each request.
        self._suggest = lru_cache(maxsize=512)(self._find_similar)

    def warnings(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Return one sentence for each key that is misplaced, unsupported or misspelled.

        At most MAX_COMPARED unknown keys are compared with the known ones; one more sentence says
        so where there are others.
        """
        if body.keys() <= self.keys:
            return ()
        looked_at = islice(body, MAX_LOOKED_AT)
        unknown = [name for name in looked_at if name not in self.keys and body[name] is not None]
        sentences = [
            sentence
            for name in islice(unknown, MAX_COMPARED)
            if (sentence := self._sentence(name, body[name])) is not None
        ]
        if len(unknown) > MAX_COMPARED:
            where = self._path.rstrip(".") or "the request"
            count = len(unknown) if len(body) <= MAX_LOOKED_AT else f"at least {len(unknown)}"
            sentences.append(
                f"{where} has {count} unknown keys, of which the first {MAX_COMPARED} were "
                "checked for misspelled names"
            )
        return tuple(sentences)

    def _sentence(self, name: str, value: Any) -> str | None:
        readable = name.isascii() and name.isprintable() and len(name) <= MAX_CHARS
        full = self._path + (name if readable else describe_value(name))
        if (at := self._elsewhere.get(name)) is not None:
            place = f"in {at.rstrip('.')}" if at else "beside input"
            return f"{full} was ignored: put it {place}"
        if (note := self._notes.get(name)) is not None:
            return None if asks_for_nothing(name, value) else f"{full} {note}"
        comparable = MIN_CHARS <= len(name) <= MAX_CHARS
        if comparable and (suggestion := self._suggest(name)) is not None:
            return f"{full} is unknown and was ignored: did you mean {suggestion}?"
        return f"{full} is unknown and was ignored" if self._names_all else None

    def _find_similar(self, name: str) -> str | None:
        letters = _letters(name)
        if (same := self._suggestions.get(letters)) is not None:
            return same
        similar = get_close_matches(letters, self._comparable, n=1, cutoff=_SIMILARITY)
        return self._suggestions[similar[0]] if similar else None


def _letters(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())

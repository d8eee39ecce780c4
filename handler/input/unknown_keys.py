"""Warnings about keys of a request that are misspelled or in the wrong object."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any

from common.value_description import describe_value
from handler.input.parameter_names import SYNONYMS, has_no_effect

# Per object. Comparing a key with the known keys takes about a millisecond the first time.
MAX_COMPARED_KEYS = 16
# Per object; requests usually have a few tens of keys.
MAX_READ_KEYS = 1_000
# Longer keys are not misspelled names; shorter ones resemble too many names.
MAX_CHARS, MIN_CHARS = 48, 3
# One wrong letter in a name of four letters leaves three quarters.
_SIMILARITY = 0.75
_EMPTY: Mapping[str, str] = MappingProxyType({})


class KnownKeys:
    """The known keys of one JSON object of a request, and warnings about other keys.

    `path` precedes a key in a warning, e.g. "input.". `misplaced` maps a key to the path of the
    object that it belongs to; the empty path is the request itself. `notes` maps a key to the rest
    of its warning, e.g. "is not supported and was ignored". `ignored` are keys whose warnings come
    from the code that reads the object.

    With `warns_about_all` every unknown key causes a warning; otherwise only keys that resemble a
    known key do.

    Unknown keys never fail a request. Immutable, for use by any thread.
    """

    def __init__(
        self,
        path: str,
        keys: Collection[str],
        *,
        misplaced: Mapping[str, str] = _EMPTY,
        notes: Mapping[str, str] = _EMPTY,
        ignored: Collection[str] = (),
        warns_about_all: bool = False,
    ) -> None:
        self.keys = frozenset(keys) | frozenset(ignored)
        self._path = path
        self._misplaced = {name: at for name, at in misplaced.items() if name not in self.keys}
        self._notes = {name: note for name, note in notes.items() if name not in self.keys}
        self._warns_about_all = warns_about_all
        # Keyed by letters and digits only, so that maxTokens and max-tokens match max_tokens. Later
        # entries win: a key of this object is a better suggestion than a key of another object.
        unsupported = self._notes.keys() | (frozenset(ignored) - frozenset(keys))
        self._suggestions: dict[str, str] = {
            _normalize_name(name): f"{name}, which is not supported here" for name in unsupported
        }
        self._suggestions |= {
            _normalize_name(name): at + name for name, at in self._misplaced.items()
        }
        self._suggestions |= {_normalize_name(name): path + name for name in keys}
        for synonym, name in SYNONYMS.items():
            if (full := self._suggestions.get(_normalize_name(name))) is not None:
                self._suggestions.setdefault(_normalize_name(synonym), full)
        self._comparable = [name for name in self._suggestions if len(name) > MIN_CHARS]
        # Cached because applications repeat the same key in each request.
        self._suggest = lru_cache(maxsize=512)(self._find_similar)

    def warnings(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Return one warning for each key that is misplaced, unsupported or misspelled.

        At most MAX_COMPARED_KEYS unknown keys are compared with the known ones; one more warning
        says so if there are more.
        """
        if body.keys() <= self.keys:
            return ()
        read_keys = islice(body, MAX_READ_KEYS)
        unknown = [name for name in read_keys if name not in self.keys and body[name] is not None]
        sentences = [
            sentence
            for name in islice(unknown, MAX_COMPARED_KEYS)
            if (sentence := self._build_warning(name, body[name])) is not None
        ]
        if len(unknown) > MAX_COMPARED_KEYS:
            where = self._path.rstrip(".") or "the request"
            count = len(unknown) if len(body) <= MAX_READ_KEYS else f"at least {len(unknown)}"
            sentences.append(
                f"{where} has {count} unknown keys, of which the first {MAX_COMPARED_KEYS} were "
                "checked for misspelled names"
            )
        return tuple(sentences)

    def _build_warning(self, name: str, value: Any) -> str | None:
        is_readable = name.isascii() and name.isprintable() and len(name) <= MAX_CHARS
        full = self._path + (name if is_readable else describe_value(name))
        if (at := self._misplaced.get(name)) is not None:
            place = f"in {at.rstrip('.')}" if at else "beside input"
            return f"{full} was ignored: put it {place}"
        if (note := self._notes.get(name)) is not None:
            return None if has_no_effect(name, value) else f"{full} {note}"
        is_comparable = MIN_CHARS <= len(name) <= MAX_CHARS
        if is_comparable and (suggestion := self._suggest(name)) is not None:
            return f"{full} is unknown and was ignored: did you mean {suggestion}?"
        return f"{full} is unknown and was ignored" if self._warns_about_all else None

    def _find_similar(self, name: str) -> str | None:
        letters = _normalize_name(name)
        if (same := self._suggestions.get(letters)) is not None:
            return same
        similar = get_close_matches(letters, self._comparable, n=1, cutoff=_SIMILARITY)
        return self._suggestions[similar[0]] if similar else None


def _normalize_name(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())

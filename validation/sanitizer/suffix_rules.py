"""Boilerplate after an answer: wishes and offers of further help."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

# A closing sentence is shorter than this.
_MAX_SENTENCE_CHARS = 400
_SENTENCE_ENDS = tuple(SENTENCE_ENDS + ":)\"'*`\u201d\u2019")
# In a letter, the closing sentence is part of the answer.
_LETTER = r"(?mi)^[*\s]*(?:Subject:|(?:Dear|Hi|Hello|Hey)\b[^\n]{0,60},[ \t]*$)"


class SuffixRules:
    """Removes closing sentences from the end, one at a time, as long as an answer remains."""

    def __init__(self, boilerplate: SanitizerRule | None) -> None:
        closers = [
            pattern[:-1]
            for pattern in (boilerplate.patterns if boilerplate else [])
            if pattern.endswith("$")
        ]
        self._closer = Pattern(rf"{any_of(closers)}\z") if closers else None
        self._letter = Pattern(_LETTER)

    def find_edits(self, view: TextView) -> list[Edit]:
        """Return one edit that removes all of them."""
        if self._closer is None:
            return []
        text = view.text
        suffix_start = view.end
        while True:
            view.budget.spend()
            search_start = max(0, suffix_start - _MAX_SENTENCE_CHARS)
            sentence_start = self._closer.find_first(text[search_start:suffix_start])
            if sentence_start < 0:
                break
            sentence_start += search_start
            before = view.end_before(sentence_start)
            if (
                not before
                or before == sentence_start
                or not _is_boundary(text, before, sentence_start)
            ):
                break
            suffix_start = before
        if (
            suffix_start == view.end
            or self._letter.matches(view)
            or view.code.find_span(suffix_start, view.end)
        ):
            return []
        return [Edit(suffix_start, len(text), "", "boilerplate")]


def _is_boundary(text: str, before: int, sentence_start: int) -> bool:
    """Return whether a sentence starts here: a new line does, or the text before ends one."""
    return "\n" in text[before:sentence_start] or text[before - 1] in _SENTENCE_ENDS

"""What stands behind an answer: hopes that it helps, offers to go on."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

# A closing sentence is shorter than that.
_MAX_SENTENCE_CHARS = 400
_SENTENCE_ENDS = tuple(SENTENCE_ENDS + ":)\"'*`\u201d\u2019")
# Whoever asked for a letter wants its last sentence too.
_LETTER = r"(?mi)^[*\s]*(?:Subject:|(?:Dear|Hi|Hello|Hey)\b[^\n]{0,60},[ \t]*$)"


class SuffixRules:
    """Peels courtesies off the end, whole sentences at a time, as long as an answer is left."""

    def __init__(self, boilerplate: SanitizerRule | None) -> None:
        closers = [
            pattern[:-1]
            for pattern in (boilerplate.patterns if boilerplate else [])
            if pattern.endswith("$")
        ]
        self._closer = Pattern(rf"{any_of(closers)}\z") if closers else None
        self._letter = Pattern(_LETTER)

    def edits(self, page: TextView) -> list[Edit]:
        """Return the one edit that takes off all of them."""
        if self._closer is None:
            return []
        text = page.text
        reached = page.end
        while True:
            page.budget.spend()
            low = max(0, reached - _MAX_SENTENCE_CHARS)
            at = self._closer.tail(text[low:reached])
            if at < 0:
                break
            at += low
            before = page.end_before(at)
            if not before or before == at or not _is_boundary(text, before, at):
                break
            reached = before
        if reached == page.end or self._letter.found(page) or page.code.around(reached, page.end):
            return []
        return [Edit(reached, len(text), "", "boilerplate")]


def _is_boundary(text: str, before: int, at: int) -> bool:
    """Tell whether a sentence begins at `at`: a line does, or one has ended before."""
    return "\n" in text[before:at] or text[before - 1] in _SENTENCE_ENDS

"""Where a text is code, which no rule may touch."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from validation.sanitizer.budget import Budget

# What may stand before a fence in its line: it may be in a list or in a quotation, or in both.
_FENCE_PREFIX_CHARS = " \t>-*+.)0123456789"
# A model may put a fence behind a label, or behind the words that lead to it; then nothing but the
# language may follow. The beginning of the line is looked for this far back.
_MAX_PREFIX_CHARS = 300
_MAX_LANGUAGE_CHARS = 20
# The beginning of a line is looked for this far back: nobody's prose has longer lines, and whoever
# asks for many places in one line must not walk through all of it every time.
MAX_LINE_CHARS = 2_000
# So many of them are found in the time that one place takes.
_FENCES_PER_POSITION = 4
_RUNS_PER_POSITION = 16
_TICKS = re.compile("`+")
_INDENTS = ("    ", "\t", " \t", "  \t", "   \t")


class CodeSpans:
    """Fenced blocks, spans between backticks, and indented lines of one text.

    More than CommonMark is taken for code where that is simpler: whatever is indented by four
    columns, for one. A rule that keeps away from too much does no harm.
    """

    def __init__(self, text: str, budget: Budget) -> None:
        self._text = text
        self._budget = budget
        self._fences = _find_fences(text, budget)
        self._starts = [start for start, _ in self._fences]
        self._has_spans = "`" in text
        self._paragraph = (0, 0)
        self._spans: list[tuple[int, int]] = []
        self._span_starts: list[int] = []

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """Return a stretch of code that touches `[start:end]`.

        Quick if one asks for places in their order: paragraphs are read as they are asked for.
        """
        at = bisect_right(self._starts, max(start, end - 1)) - 1
        if at >= 0 and self._fences[at][1] > start:
            return self._fences[at]
        if self._has_spans and (span := self._span(start, end)):
            return span
        return self._indented(start)

    def _indented(self, at: int) -> tuple[int, int] | None:
        low = max(0, at - MAX_LINE_CHARS)
        line = self._text.rfind("\n", low, at) + 1
        if (line or low == 0) and self._text.startswith(_INDENTS, line):
            return line, at
        return None

    def _span(self, start: int, end: int) -> tuple[int, int] | None:
        text, (first, last) = self._text, self._paragraph
        if not first <= start < last:
            # Between two blank lines and outside of fences, for no span reaches across either.
            low = last if start >= last else 0
            fence = bisect_right(self._starts, start) - 1
            low = max(low, self._fences[fence][1]) if fence >= 0 else low
            high = self._starts[fence + 1] if fence + 1 < len(self._starts) else len(text)
            first = max(low, text.rfind("\n\n", low, start + 1))
            blank = text.find("\n\n", max(start, first + 1), high)
            last = blank + 1 if blank >= 0 else max(high, start + 1)
            self._paragraph = (first, last)
            self._spans = _find_spans(text, first, last, self._budget)
            self._span_starts = [span[0] for span in self._spans]
        at = bisect_right(self._span_starts, max(start, end - 1)) - 1
        if at >= 0 and self._spans[at][1] > start:
            return self._spans[at]
        return None


def _run_length(text: str, at: int) -> int:
    """Return how often the character at `at` stands there in a row."""
    char, size, length = text[at], 8, 0
    while True:
        chunk = text[at + length : at + length + size]
        left = chunk.lstrip(char)
        length += len(chunk) - len(left)
        if left or not chunk:
            return length
        size *= 2


def _find_fences(text: str, budget: Budget) -> list[tuple[int, int]]:
    """Return the fenced blocks, from the beginning of the first line to the end of the last.

    A block that is never closed goes on to the end: answers are cut off.

    Raises:
        TooMuchError: there are more runs of backticks and tildes than in any answer.
    """
    found: list[tuple[int, int]] = []
    size = len(text)
    next_at = {"```": -1, "~~~": -1}
    pos = start = length = seen = 0
    mark = ""
    while True:
        for kind in (mark,) if mark else ("```", "~~~"):
            if next_at[kind] < pos:
                at = text.find(kind, pos)
                next_at[kind] = at if at >= 0 else size
        at = next_at[mark] if mark else min(next_at.values())
        if at >= size:
            break
        seen += 1
        if seen % _FENCES_PER_POSITION == 0:
            budget.spend()
        run = _run_length(text, at)
        pos = at + run
        low = max(0, at - _MAX_PREFIX_CHARS)
        line = text.rfind("\n", low, at) + 1
        if low and not line:
            continue
        prefix = text[line:at].strip(_FENCE_PREFIX_CHARS)
        if prefix and (mark or not _is_fence_after_text(text, prefix, at, pos)):
            continue
        if not mark:
            end = text.find("\n", pos)
            end = size if end < 0 else end
            # A backtick in the rest of the line: that is a span of code which begins a line.
            if text[at] == "`" and text.find("`", pos, end) >= 0:
                pos = end
                continue
            mark, start, length, pos = text[at] * 3, at if prefix else line, run, end
        elif run >= length and not text[line:at].strip(" \t>"):
            rest = text[pos : pos + 80].partition("\n")[0].strip()
            # A chat template's token may have been put right behind the fence.
            if not rest or rest[0] in "<[":
                found.append((start, pos))
                mark = ""
    if mark:
        found.append((start, size))
    return found


def _is_fence_after_text(text: str, prefix: str, at: int, end: int) -> bool:
    """Tell whether a fence with words before it in its line is one nevertheless."""
    language, newline, _ = text[end : end + _MAX_LANGUAGE_CHARS].partition("\n")
    language = language.strip()
    is_word = not language or (language[0].isalpha() and " " not in language)
    return bool(newline) and is_word and text[at] not in prefix


def _find_spans(text: str, start: int, end: int, budget: Budget) -> list[tuple[int, int]]:
    """Return the spans of code in one paragraph, backticks included.

    A run of backticks goes with the next one that is as long; one that has none is plain text.
    """
    if text.find("``", start, end) >= 0:
        runs = [
            (match.start(), match.end() - match.start())
            for match in _TICKS.finditer(text, start, end)
        ]
        budget.spend(len(runs) // _RUNS_PER_POSITION)
        return _pair_runs(runs)
    pieces = text[start:end].split("`")
    budget.spend(len(pieces) // _RUNS_PER_POSITION)
    ticks = [before + at for at, before in enumerate(accumulate(map(len, pieces[:-1])), start)]
    return [(a, b + 1) for a, b in zip(ticks[::2], ticks[1::2], strict=False)]


def _pair_runs(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    following: dict[int, int] = {}
    partner = [-1] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        size = runs[index][1]
        partner[index] = following.get(size, -1)
        following[size] = index
    found = []
    index = 0
    while index < len(runs):
        other = partner[index]
        if other >= 0:
            found.append((runs[index][0], runs[other][0] + runs[other][1]))
            index = other
        index += 1
    return found

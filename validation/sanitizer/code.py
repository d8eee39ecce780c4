"""Finds code in a text, which the rules must not change."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from validation.sanitizer.budget import Budget

# Characters that may precede a fence on its line, which may be in a list or a quotation.
_FENCE_PREFIX_CHARS = " \t>-*+.)0123456789"
# A model may put a fence after a label or an introduction on the same line; then only the language
# may follow. The start of the line is searched this far back.
_MAX_PREFIX_CHARS = 300
_MAX_LANGUAGE_CHARS = 20
# The start of a line is searched this far back. Prose has no longer lines. An unlimited search for
# many positions in one very long line would take quadratic time.
MAX_LINE_CHARS = 2_000
# This many fences or runs of backticks cost as much as one position of the budget.
_FENCES_PER_POSITION = 4
_RUNS_PER_POSITION = 16
_TICKS = re.compile("`+")
_INDENTS = ("    ", "\t", " \t", "  \t", "   \t")


class CodeSpans:
    """Fenced blocks, spans between backticks, and indented lines of one text.

    Where it is simpler, more counts as code than in CommonMark, for example every line that is
    indented by four columns. A rule that skips too much does no harm.
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

    def find_span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return a span of code that overlaps `[start:end]`, or None.

        Paragraphs are parsed on demand and only the last one is cached, so calls are fast if their
        positions are in order.
        """
        index = bisect_right(self._starts, max(start, end - 1)) - 1
        if index >= 0 and self._fences[index][1] > start:
            return self._fences[index]
        if self._has_spans and (span := self._span(start, end)):
            return span
        return self._indented(start)

    def _indented(self, index: int) -> tuple[int, int] | None:
        search_start = max(0, index - MAX_LINE_CHARS)
        line = self._text.rfind("\n", search_start, index) + 1
        if (line or search_start == 0) and self._text.startswith(_INDENTS, line):
            return line, index
        return None

    def _span(self, start: int, end: int) -> tuple[int, int] | None:
        text, (first, last) = self._text, self._paragraph
        if not first <= start < last:
            # A span does not cross blank lines or fences, so those limit the search.
            search_start = last if start >= last else 0
            fence = bisect_right(self._starts, start) - 1
            search_start = max(search_start, self._fences[fence][1]) if fence >= 0 else search_start
            search_end = self._starts[fence + 1] if fence + 1 < len(self._starts) else len(text)
            first = max(search_start, text.rfind("\n\n", search_start, start + 1))
            blank = text.find("\n\n", max(start, first + 1), search_end)
            last = blank + 1 if blank >= 0 else max(search_end, start + 1)
            self._paragraph = (first, last)
            self._spans = _find_spans(text, first, last, self._budget)
            self._span_starts = [span[0] for span in self._spans]
        index = bisect_right(self._span_starts, max(start, end - 1)) - 1
        if index >= 0 and self._spans[index][1] > start:
            return self._spans[index]
        return None


def _run_length(text: str, index: int) -> int:
    """Return the number of consecutive characters equal to the one at `index`."""
    char, size, length = text[index], 8, 0
    while True:
        chunk = text[index + length : index + length + size]
        left = chunk.lstrip(char)
        length += len(chunk) - len(left)
        if left or not chunk:
            return length
        size *= 2


def _find_fences(text: str, budget: Budget) -> list[tuple[int, int]]:
    """Return the fenced blocks, from the start of the first line to the end of the last.

    A block that is never closed extends to the end, because answers may be truncated.

    Raises:
        BudgetExceeded: there are more runs of backticks and tildes than in any real answer.
    """
    fences: list[tuple[int, int]] = []
    size = len(text)
    search = _MarkSearch(text)
    position = start = length = fence_count = 0
    mark = ""
    while (index := search.find((mark,) if mark else _MARKS, position)) < size:
        fence_count += 1
        if fence_count % _FENCES_PER_POSITION == 0:
            budget.spend()
        run = _run_length(text, index)
        position = index + run
        search_start = max(0, index - _MAX_PREFIX_CHARS)
        line = text.rfind("\n", search_start, index) + 1
        if search_start and not line:
            continue
        prefix = text[line:index].strip(_FENCE_PREFIX_CHARS)
        if prefix and (mark or not _is_fence_after_text(text, prefix, index, position)):
            continue
        if not mark:
            end = text.find("\n", position)
            end = size if end < 0 else end
            # With a backtick in the rest of the line, this is a code span and not a fence.
            if text[index] == "`" and text.find("`", position, end) >= 0:
                position = end
                continue
            mark, start, length, position = text[index] * 3, index if prefix else line, run, end
        elif run >= length and _is_closing_fence(text[line:index], text, position):
            fences.append((start, position))
            mark = ""
    if mark:
        fences.append((start, size))
    return fences


_MARKS = ("```", "~~~")


class _MarkSearch:
    """Finds the next mark of a fence. Each mark is searched once in each part of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = dict.fromkeys(_MARKS, -1)

    def find(self, marks: Sequence[str], position: int) -> int:
        """Return the first position of one of the marks; the size of the text without one."""
        for mark in marks:
            if self._next[mark] < position:
                index = self._text.find(mark, position)
                self._next[mark] = index if index >= 0 else len(self._text)
        return min(self._next[mark] for mark in marks)


def _is_closing_fence(prefix: str, text: str, end: int) -> bool:
    """Return whether a run of marks that is long enough closes a block."""
    rest = text[end : end + 80].partition("\n")[0].strip()
    # A token of a chat template may follow the fence.
    return not prefix.strip(" \t>") and (not rest or rest[0] in "<[")


def _is_fence_after_text(text: str, prefix: str, index: int, end: int) -> bool:
    """Return whether a run of marks after other text on its line opens a block."""
    language, newline, _ = text[end : end + _MAX_LANGUAGE_CHARS].partition("\n")
    language = language.strip()
    is_word = not language or (language[0].isalpha() and " " not in language)
    return bool(newline) and is_word and text[index] not in prefix


def _find_spans(text: str, start: int, end: int, budget: Budget) -> list[tuple[int, int]]:
    """Return the code spans in one paragraph, including their backticks.

    A run of backticks is closed by the next run of the same length; without one it is plain text.
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
    ticks = [length + at for at, length in enumerate(accumulate(map(len, pieces[:-1])), start)]
    return [(a, b + 1) for a, b in zip(ticks[::2], ticks[1::2], strict=False)]


def _pair_runs(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    following: dict[int, int] = {}
    partner = [-1] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        size = runs[index][1]
        partner[index] = following.get(size, -1)
        following[size] = index
    spans = []
    index = 0
    while index < len(runs):
        other = partner[index]
        if other >= 0:
            spans.append((runs[index][0], runs[other][0] + runs[other][1]))
            index = other
        index += 1
    return spans

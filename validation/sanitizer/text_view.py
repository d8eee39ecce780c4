"""A text with the derived data that all rules share."""

from __future__ import annotations

from functools import cached_property

from validation.sanitizer.budget import Budget
from validation.sanitizer.code import MAX_LINE_CHARS, CodeSpans

# The full stops, question marks and exclamation marks of European and East Asian scripts.
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"


class TextView:
    """The text of one pass."""

    def __init__(self, text: str, budget: Budget | None = None) -> None:
        self.text = text
        self.budget = budget or Budget()

    @cached_property
    def raw(self) -> bytes:
        """The text as bytes for RE2; unpaired surrogates are allowed."""
        return self.text.encode("utf-8", "surrogatepass")

    @cached_property
    def code(self) -> CodeSpans:
        """The code in the text, computed when a rule first needs it."""
        return CodeSpans(self.text, self.budget)

    @cached_property
    def end(self) -> int:
        """The end of the text without trailing white space."""
        return len(self.text.rstrip())

    def line_start(self, at: int) -> int:
        """Return the start of the line at `at`, or a position MAX_LINE_CHARS before `at`."""
        search_start = max(0, at - MAX_LINE_CHARS)
        return max(search_start, self.text.rfind("\n", search_start, at) + 1)

    def skip_space(self, at: int) -> int:
        """Return the end of the white space that starts at `at`."""
        size = 32
        while True:
            chunk = self.text[at : at + size]
            left = chunk.lstrip()
            at += len(chunk) - len(left)
            if left or not chunk:
                return at
            size *= 2

    def end_before(self, at: int) -> int:
        """Return the start of the white space that ends at `at`."""
        size = 32
        while at:
            chunk = self.text[max(0, at - size) : at]
            at -= len(chunk) - len(chunk.rstrip())
            if chunk.strip():
                return at
            size *= 2
        return 0

    def line_end(self, at: int) -> int:
        """Return the end of the line at `at`, or a position MAX_LINE_CHARS after `at`."""
        search_end = min(len(self.text), at + MAX_LINE_CHARS)
        line_feed = self.text.find("\n", at, search_end)
        return line_feed if line_feed >= 0 else search_end

    def skip_lines(self, at: int) -> int:
        """Return the end of the white space at `at`, but keep the indentation of its last line."""
        end = self.skip_space(at)
        line = self.text.rfind("\n", at, end) + 1
        return line or end

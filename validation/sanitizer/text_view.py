"""One text that is looked at by every rule, and what they all need to know of it."""

from __future__ import annotations

from functools import cached_property

from validation.sanitizer.budget import Budget
from validation.sanitizer.code import MAX_LINE_CHARS, CodeSpans

# Those that are in use here and in the Far East.
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"


class TextView:
    """A text between two passes."""

    def __init__(self, text: str, budget: Budget | None = None) -> None:
        self.text = text
        self.budget = budget or Budget()

    @cached_property
    def raw(self) -> bytes:
        """The text as RE2 reads it; half a surrogate pair may be in a text too."""
        return self.text.encode("utf-8", "surrogatepass")

    @cached_property
    def code(self) -> CodeSpans:
        """Where the text is code: only found out if a rule finds anything at all."""
        return CodeSpans(self.text, self.budget)

    @cached_property
    def end(self) -> int:
        """Where the text ends if white space is not counted."""
        return len(self.text.rstrip())

    def line_start(self, at: int) -> int:
        """Return where the line begins that `at` is in, or a place in it that is far enough."""
        low = max(0, at - MAX_LINE_CHARS)
        return max(low, self.text.rfind("\n", low, at) + 1)

    def skip_space(self, at: int) -> int:
        """Return where the white space ends that begins at `at`."""
        size = 32
        while True:
            chunk = self.text[at : at + size]
            left = chunk.lstrip()
            at += len(chunk) - len(left)
            if left or not chunk:
                return at
            size *= 2

    def end_before(self, at: int) -> int:
        """Return where the white space begins that ends at `at`."""
        size = 32
        while at:
            chunk = self.text[max(0, at - size) : at]
            at -= len(chunk) - len(chunk.rstrip())
            if chunk.strip():
                return at
            size *= 2
        return 0

    def line_end(self, at: int) -> int:
        """Return where the line ends that `at` is in, or a place in it that is far enough."""
        high = min(len(self.text), at + MAX_LINE_CHARS)
        found = self.text.find("\n", at, high)
        return found if found >= 0 else high

    def skip_lines(self, at: int) -> int:
        """Return where the white space ends, but before the indentation of the line it ends in."""
        end = self.skip_space(at)
        line = self.text.rfind("\n", at, end) + 1
        return line or end

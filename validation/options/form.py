"""The checks of an answer against an expression, a choice, or texts that it must not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import re2

from validation.issues import Issue

_MAX_NAMED_CHOICES = 5
# Memory of a compiled expression.
_MAX_BYTES = 8 << 20
# Each class of Unicode characters takes about a millisecond to compile, with Python's lock held.
_MAX_UNICODE_CLASSES = 50
_UNICODE_CLASS = re.compile(r"\\[pP]")


class RegexCheck:
    """Checks that an answer matches a regular expression as a whole; white space around is ignored.

    The engine of the expressions does not backtrack, so the time is linear. Any thread may call it.

    Raises:
        ValueError: it is no regular expression, or has parts that need backtracking.
    """

    def __init__(self, regex: str) -> None:
        if len(_UNICODE_CLASS.findall(regex)) > _MAX_UNICODE_CLASSES:
            raise ValueError(
                "The regular expression cannot be used: it has more than "
                f"{_MAX_UNICODE_CLASSES} classes of Unicode characters."
            )
        options: Any = re2.Options()
        options.max_mem = _MAX_BYTES
        options.log_errors = False
        try:
            self._pattern: Any = re2.compile(regex, options)
        except re2.error as error:
            reason = error.args[0]
            text = reason.decode() if isinstance(reason, bytes) else str(reason)
            raise ValueError(f"The regular expression cannot be used: {text}.") from None
        self._regex = regex

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return an issue unless the text matches."""
        if self._pattern.fullmatch(text.strip()) is not None:
            return ()
        return (Issue("pattern_mismatch", f"The answer does not match {self._regex[:200]}."),)


class ChoiceCheck:
    """Checks that an answer is one of several texts; white space around it is ignored."""

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices = frozenset(choice.strip() for choice in choices)
        named = ", ".join(choices[:_MAX_NAMED_CHOICES])
        more = len(choices) - _MAX_NAMED_CHOICES
        self._choices_text = named if more <= 0 else f"{named} or {more} others"

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return an issue unless the text is one of them."""
        if text.strip() in self._choices:
            return ()
        return (Issue("not_a_choice", f"The answer is not one of {self._choices_text}."),)


class BadWordsCheck:
    """Checks that an answer contains none of several texts, as they are written."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return an issue for the first text that the answer contains."""
        for word in self._words:
            if word in text:
                return (Issue("bad_word", f"The answer contains {word!r}."),)
        return ()

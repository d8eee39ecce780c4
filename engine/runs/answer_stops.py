"""Finds stop strings in the text of an answer, and not in its reasoning or its calls."""

from __future__ import annotations

from collections.abc import Sequence

from engine.reply.parser import ReplyParser
from engine.reply.parts import Part, TextPart
from engine.reply.reply_format import ReplyFormat
from engine.request import StopScope
from engine.runs.stops import StopMatcher


class AnswerStopMatcher:
    """Finds stop strings in the text of an output that may have reasoning and tool calls too.

    It has the methods of `StopMatcher`, and returns the output with its marks. Output is held back
    while it may be text with the beginning of a stop string, also because it may still become the
    mark of a call. A stop string does not continue after a call. Owned by the thread that produces
    the pieces; `push` must not be called after a match.
    """

    __slots__ = ("_held", "_ignored_end", "_matcher", "_parser", "_released", "_text_released")

    def __init__(self, matcher: StopMatcher, scope: StopScope) -> None:
        self._matcher = matcher
        reply_format = ReplyFormat(
            functions={name: {} for name in scope.functions},
            constrains_calls=scope.constrains_calls,
            tool_form=scope.tool_form,
        )
        # None once the rest of the output is text.
        self._parser: ReplyParser | None = ReplyParser(
            reply_format, starts_in_reasoning=scope.starts_in_reasoning
        )
        # The output that was pushed and not returned, and its position.
        self._held = ""
        self._released = 0
        # Up to which position the matcher has returned the text.
        self._text_released = 0
        # Stop strings that end before this position do not count.
        self._ignored_end = 0

    @property
    def matched(self) -> str | None:
        """The stop string that was found, or None."""
        return self._matcher.matched

    def push(self, text: str, ignored_chars: int = 0) -> str:
        """Add the next piece; return the output that no stop string can take back any more.

        A stop string that ends within the first `ignored_chars` characters does not count.
        """
        parser = self._parser
        if parser is None:
            return self._matcher.push(text, ignored_chars)
        if ignored_chars:
            self._ignored_end = self._released + len(self._held) + ignored_chars
        self._held += text
        parts = parser.push(text)
        output = self._release(parts, parser.decided_position)
        if parser.is_plain and not self._held:
            self._parser = None
        return output

    def flush(self) -> str:
        """Return the held-back output, because the stream has ended; a stop string may be in it."""
        parser, self._parser = self._parser, None
        if parser is None:
            return self._matcher.flush()
        end = self._released + len(self._held)
        output = self._release(parser.close(), end)
        if self.matched is None:
            self._matcher.flush()
            output += self._take_until(end)
        return output

    def _release(self, parts: Sequence[Part], decided: int) -> str:
        """Find stop strings in new parts; return the output that is not held back any more."""
        matcher = self._matcher
        for part in parts:
            if not isinstance(part, TextPart):
                matcher.flush()
                continue
            if not matcher.is_holding:
                self._text_released = part.start
            self._text_released += len(matcher.push(part.text, self._ignored_end - part.start))
            if matcher.matched is not None:
                return self._take_until(self._text_released)
        return self._take_until(self._text_released if matcher.is_holding else decided)

    def _take_until(self, end: int) -> str:
        length = end - self._released
        output, self._held = self._held[:length], self._held[length:]
        self._released = end
        return output

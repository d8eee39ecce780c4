"""The model's output as its readers see it: a text that grows while they wait."""

from __future__ import annotations

from engine.reply.marks import prepare
from engine.reply.parts import Reading


class TextSource:
    """A part of the model's output, and the reader's position in it.

    `add` appends new output to `text` and removes the part before `position`, which has been read.
    While a reader may return to `kept_start`, `add` removes nothing. Not thread-safe; owned by one
    parser.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_complete = False
        self.kept_start: int | None = None
        # The number of characters that were dropped.
        self._dropped = 0

    def add(self, text: str) -> None:
        """Append output. Positions from before may change, unless `kept_start` is set."""
        if self.position and self.kept_start is None:
            self._dropped += self.position
            self.text = self.text[self.position :]
            self.position = 0
        self.text += text

    def output_position(self, position: int) -> int:
        """Return the position in the whole output for one in the window."""
        return self._dropped + position

    @property
    def decided_position(self) -> int:
        """The position in the whole output up to which its parts are final."""
        start = self.position if self.kept_start is None else self.kept_start
        return self.output_position(start)

    def peek(self) -> Reading[str]:
        """Return the next character; "" at the end of the output."""
        while self.position == len(self.text) and not self.is_complete:
            yield None
        return self.text[self.position : self.position + 1]

    def skip_space(self) -> Reading[str]:
        """Skip white space and return the character after it; "" at the end of the output."""
        while (character := (yield from self.peek())).isspace():
            self.position += 1
        return character

    def skip(self, *marks: str) -> Reading[str]:
        """Skip the longest of `marks` that comes next, and return it; "" if none does."""
        prepared = prepare(marks)
        while prepared.may_continue(self.text, self.position) and not self.is_complete:
            yield None
        mark = prepared.match(self.text, self.position)
        self.position += len(mark)
        return mark

    def skip_after_space(self, *marks: str) -> Reading[str]:
        """Skip white space and one of `marks`; if none comes next, skip nothing and return ""."""
        start, kept_start = self.position, self.kept_start
        self.kept_start = start if kept_start is None else kept_start
        yield from self.skip_space()
        if not (mark := (yield from self.skip(*marks))):
            self.position = start
        self.kept_start = kept_start
        return mark

    def take_until(self, marks: tuple[str, ...]) -> tuple[str, str]:
        """Skip the text before the next of `marks`, and the mark; return both.

        Without a mark, the text is all that cannot be part of one, and the mark is "".
        """
        prepared, start = prepare(marks), self.position
        match = prepared.search(self.text, start)
        if match is not None:
            self.position = match.end()
            return self.text[start : match.start()], match[0]
        end = len(self.text)
        if not self.is_complete:
            end = prepared.find_held_start(self.text, start)
        self.position = end
        return self.text[start:end], ""

    def attempt(self, reading: Reading[object], at: int | None = None) -> Reading[bool]:
        """Read something that may not be there: without any part of it the position stays.

        It begins at the position `at`, or at the reader's position. Returns whether there was a
        part. Then the output read so far is dropped.
        """
        start, kept_start = self.position, self.kept_start
        self.kept_start = start if kept_start is None else kept_start
        if at is not None:
            self.position = at
        has_part = False
        for part in reading:
            if part is not None:
                has_part, self.kept_start = True, None
            yield part
        if not has_part:
            self.position, self.kept_start = start, kept_start
        return has_part

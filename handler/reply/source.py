"""The model's output as its readers see it: a text that grows while they wait."""

from __future__ import annotations

from handler.reply.marks import prepare
from handler.reply.parts import Reading


class TextSource:
    """A part of the model's output, and the reader's position in it.

    `add` appends new output to `text` and removes the part before `position`, which has been read.
    While `keeps_text` is set, `add` removes nothing, so a reader can return to an earlier position.
    Not thread-safe; owned by one parser.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_complete = False
        self.keeps_text = False
        # The number of characters that were dropped.
        self._dropped = 0

    def add(self, text: str) -> None:
        """Append output. Positions from before may change, unless `keeps_text` is set."""
        if self.position and not self.keeps_text:
            self._dropped += self.position
            self.text = self.text[self.position :]
            self.position = 0
        self.text += text

    def output_position(self, position: int) -> int:
        """Return the position in the whole output for one in the window."""
        return self._dropped + position

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
        start, keeps_text, self.keeps_text = self.position, self.keeps_text, True
        yield from self.skip_space()
        if not (mark := (yield from self.skip(*marks))):
            self.position = start
        self.keeps_text = keeps_text
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

    def attempt(self, reading: Reading[object]) -> Reading[bool]:
        """Read something that may not be there: without any part of it the position stays.

        Returns whether there was a part. Then the output read so far is dropped.
        """
        start, keeps_text, self.keeps_text = self.position, self.keeps_text, True
        has_part = False
        for part in reading:
            if part is not None:
                has_part, self.keeps_text = True, False
            yield part
        if not has_part:
            self.position, self.keeps_text = start, keeps_text
        return has_part

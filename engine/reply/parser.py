"""Take a model's output apart while it arrives."""

from __future__ import annotations

import uuid
from dataclasses import replace

from engine.prompts.reasoning import REASONING_MARKS
from engine.reply.calls.formats import CallForms
from engine.reply.marks import Marks
from engine.reply.parts import CallArguments, CallStart, Part, Reading, ReasoningPart, TextPart
from engine.reply.reasoning import ANSWER_HEADERS, read_reasoning
from engine.reply.reply import Reply, ToolCall
from engine.reply.reply_format import ReplyFormat
from engine.reply.source import TextSource

# Without functions, only these make an output something else than text.
_LEADING_MARKS = (*REASONING_MARKS, *ANSWER_HEADERS)


class ReplyParser:
    """Finds reasoning, text and tool calls; the result does not depend on how the output was split.

    Output that may be the start of a mark is held back until it is clear whether it is one. White
    space around reasoning and calls belongs to neither. `starts_in_reasoning` means that the prompt
    has opened the reasoning already. Not thread-safe.
    """

    def __init__(self, reply_format: ReplyFormat, *, starts_in_reasoning: bool = False) -> None:
        self._format = reply_format
        self._forms = CallForms(reply_format) if reply_format.functions else None
        self._source = TextSource()
        self._starts_in_reasoning = starts_in_reasoning
        # Whether the rest of the output is text, whatever comes.
        self.is_plain = False
        self._reading = self._read()
        self._reasoning: list[str] = []
        self._reasoning_end = 0
        self._text: list[str] = []
        self._text_starts: list[tuple[int, int]] = []
        self._text_length = 0
        # The id, the name and the arguments of each call.
        self._calls: list[tuple[str, str, list[str]]] = []
        self._drops_call = False
        # Whether there was no text since the last call.
        self._follows_call = False

    def push(self, text: str) -> list[Part]:
        """Read more output; return the new parts."""
        self._source.add(text)
        return self._collect()

    def close(self) -> list[Part]:
        """Read the output that was held back; return the last parts."""
        self._source.is_complete = True
        return self._collect()

    @property
    def decided_position(self) -> int:
        """The position in the output up to which the parts do not depend on what follows."""
        return self._source.decided_position

    def reply(self) -> Reply:
        """Return everything that was found. Call it after `close`."""
        # A text without any piece is empty, and at the end of the output.
        output_end = self._source.output_position(len(self._source.text))
        return Reply(
            "".join(self._reasoning),
            "".join(self._text),
            tuple(ToolCall(call_id, name, "".join(texts)) for call_id, name, texts in self._calls),
            tuple(self._text_starts) or ((0, output_end),),
            self._reasoning_end,
        )

    def _collect(self) -> list[Part]:
        """Read on, and return the new parts, with neighbours of the same kind as one part."""
        groups: list[list[Part]] = []
        for reading in self._reading:
            if reading is None:
                break
            if (part := self._record(reading)) is None:
                continue
            if groups and _is_continued(groups[-1][0], part):
                groups[-1].append(part)
            else:
                groups.append([part])
        return [_join(group) for group in groups]

    def _record(self, part: Part) -> Part | None:
        """Add a part to the reply; return it as clients get it, or None if it is dropped."""
        match part:
            case ReasoningPart(text):
                self._reasoning.append(text)
            case TextPart(text, start):
                self._text.append(text)
                self._text_starts.append((self._text_length, start))
                self._text_length += len(text)
            case CallStart(name):
                self._drops_call = bool(self._calls) and not self._format.parallel_calls
                if self._drops_call:
                    return None
                call_id = f"call_{uuid.uuid4().hex[:24]}"
                self._calls.append((call_id, name, []))
                return CallStart(name, len(self._calls) - 1, call_id)
            case CallArguments(text):
                if self._drops_call:
                    return None
                self._calls[-1][2].append(text)
                return CallArguments(text, len(self._calls) - 1)
        return part

    def _read(self) -> Reading[None]:
        source = self._source
        # Some models repeat the mark that the prompt ends with.
        mark = yield from source.skip_after_space(*REASONING_MARKS)
        if mark or self._starts_in_reasoning:
            closes = (REASONING_MARKS[mark],) if mark else tuple(REASONING_MARKS.values())
            yield from read_reasoning(source, closes)
            self._reasoning_end = source.output_position(source.position)
            yield from source.skip_space()
        if (yield from source.skip_after_space(*ANSWER_HEADERS)):
            yield from source.skip_space()
        if self._forms is None:
            self.is_plain = True
            yield from self._read_plain()
        else:
            yield from self._read_text(self._forms)

    def _read_plain(self) -> Reading[None]:
        source = self._source
        while True:
            if source.position < len(source.text):
                yield self._take_text(source.position, len(source.text))
            if source.is_complete:
                return
            yield None

    def _read_text(self, forms: CallForms) -> Reading[None]:
        """Read text and tool calls up to the end of the output."""
        source, marks = self._source, forms.openings
        # Before this position no call begins.
        searched = source.position
        while True:
            searched, has_opening = self._find_opening(marks, searched)
            end = searched
            if has_opening or not source.is_complete or self._follows_call:
                # White space around calls is text only if there is text on both sides.
                end = source.position + len(source.text[source.position : end].rstrip())
            if end > source.position:
                self._follows_call = False
                yield self._take_text(source.position, end)
            if has_opening:
                if (yield from source.attempt(forms.read(source), searched)):
                    self._follows_call = True
                    if not self._text:
                        yield from source.skip_space()
                    searched = source.position
                else:
                    searched = max(searched + 1, forms.reached)
            elif source.is_complete:
                return
            else:
                ahead = searched - source.position
                yield None
                searched = source.position + ahead

    def _find_opening(self, marks: Marks, searched: int) -> tuple[int, bool]:
        """Return up to where the output is text, and whether calls may begin there.

        The first mark counts only if there is no longer one before it that may still be arriving.
        """
        text = self._source.text
        end = len(text)
        if not self._source.is_complete:
            end = marks.find_held_start(text, searched)
        opening = marks.search(text, searched)
        if opening is None or end < opening.start():
            return end, False
        return opening.start(), True

    def _take_text(self, start: int, end: int) -> TextPart:
        self._source.position = end
        return TextPart(self._source.text[start:end], self._source.output_position(start))


def _is_continued(first: Part, following: Part) -> bool:
    """Return whether the following part is of the same kind, and has text to add to the first."""
    return type(first) is type(following) and not isinstance(first, CallStart)


def _join(parts: list[Part]) -> Part:
    """Return one part with the text of all of them; only one part may have no text."""
    first = parts[0]
    if len(parts) == 1 or isinstance(first, CallStart):
        return first
    text = "".join([part.text for part in parts if not isinstance(part, CallStart)])
    return replace(first, text=text)


def read_reply(
    output: str, reply_format: ReplyFormat, *, starts_in_reasoning: bool = False
) -> Reply:
    """Take a complete output apart."""
    has_marks = starts_in_reasoning or output.lstrip().startswith(_LEADING_MARKS)
    if not has_marks and not reply_format.functions:
        return Reply(text=output)
    parser = ReplyParser(reply_format, starts_in_reasoning=starts_in_reasoning)
    parser.push(output)
    parser.close()
    return parser.reply()

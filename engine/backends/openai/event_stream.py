"""An incremental parser of server-sent events, written from the WHATWG's text.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

# U+0085, U+2028 and U+2029 end no line, unlike in `str.splitlines`.
_LINE_END = re.compile(r"\r\n|\r|\n")
# Not `str.isdecimal`, which accepts digits of all scripts. `int` refuses more than 4,300 digits.
_RETRY_DIGITS = re.compile(r"[0-9]{1,4300}")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its type and its data, and what holds for a reconnection after it.

    `retry_ms` is the reconnection time in milliseconds; None while the stream has set none.
    """

    name: str
    data: str
    last_event_id: str = ""
    retry_ms: int | None = None


class EventStreamParser:
    """Returns the events of one stream, whose bytes may be cut anywhere.

    Bytes that are not UTF-8 become U+FFFD, so no stream is invalid. An event that the end of the
    stream cuts short is never returned. `last_event_id` and `retry_ms` are those of the stream so
    far; a stream can set them without an event.
    """

    def __init__(self) -> None:
        self.last_event_id = ""
        self.retry_ms: int | None = None
        # This decoder drops one byte order mark, at the start.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        # The parts of the unfinished line; joined at its end, because there may be many.
        self._line_parts: list[str] = []
        self._follows_cr = False
        self._data_lines: list[str] = []
        self._name = ""
        self._next_id = ""

    def feed(self, body: bytes) -> list[Event]:
        """Return the events that are complete now."""
        text = self._decoder.decode(body)
        if text:
            # A CR ends its line at once. An LF that follows it is the second half of that line end.
            if self._follows_cr:
                text = text.removeprefix("\n")
            self._follows_cr = text.endswith("\r")
        *ends, rest = _LINE_END.split(text)
        events = []
        for end in ends:
            line = "".join((*self._line_parts, end))
            self._line_parts.clear()
            if line:
                self._process_field(line)
            elif (event := self._finish_event()) is not None:
                events.append(event)
        if rest:
            self._line_parts.append(rest)
        return events

    def _process_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data_lines.append(value)
            case "event":
                self._name = value
            case "id" if "\0" not in value:
                self._next_id = value
            case "retry" if _RETRY_DIGITS.fullmatch(value):
                self.retry_ms = int(value)
            case _:
                # A comment, whose name is empty, or a field that the specification ignores.
                pass

    def _finish_event(self) -> Event | None:
        """Return the event that an empty line ends; None if it has no data."""
        self.last_event_id = self._next_id
        data_lines, self._data_lines = self._data_lines, []
        name, self._name = self._name, ""
        if not data_lines:
            return None
        return Event(name or "message", "\n".join(data_lines), self.last_event_id, self.retry_ms)

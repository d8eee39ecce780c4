"""Faults that leave out, repeat, move or change the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from emulator.middleware.faults.chunks import (
    add_text,
    dump_json,
    find_text,
    has_finish_reason,
    parse_json,
)
from emulator.middleware.faults.events import SSEEvent
from emulator.middleware.faults.parser import Faults

_LINE_SEPARATORS = "\u0085\u2028\u2029"
_LARGE_CHARS = 300_000
_USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
_PING = SSEEvent(b'{"type": "ping"}', (b"event: ping",))
_UNKNOWN = SSEEvent(b'{"type": "future.note", "note": "a later version"}', (b"event: future.note",))


@dataclass(slots=True)
class _Edited:
    """One event of the server with its number, and the value of the fault that is applied."""

    event: SSEEvent
    number: int
    value: float
    chunk: Any

    def with_chunk(self, chunk: Any) -> SSEEvent:
        """Return the event with another value as its JSON."""
        return replace(self.event, data=dump_json(chunk))


class EventEdits:
    """Applies these faults to the events of one stream; `finish` returns the events held back."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._edits = [(name, edit) for name, edit in _EDITS.items() if name in faults]
        self._has_separators = False
        self._has_large_event = False
        # The event that `swap-events` moves, and the last text that two other faults move.
        self._swapped: SSEEvent | None = None
        self._text: SSEEvent | None = None

    def feed(self, event: SSEEvent, number: int) -> Sequence[SSEEvent]:
        """Return the events that are sent for event `number`."""
        events = [event]
        for name, edit in self._edits:
            value = self._faults[name]
            events = [
                edited
                for each in events
                for edited in edit(_Edited(each, number, value, parse_json(each.data)))
            ]
        events = self._add_once(events)
        if number == self._faults.get("swap-events"):
            self._swapped = events.pop() if events else None
        elif self._swapped is not None:
            events.append(self._swapped)
            self._swapped = None
        if self._faults.keys() & {"text-with-finish", "text-after-finish"}:
            events = [moved for each in events for moved in self._move_text(each)]
        return events

    def finish(self) -> Sequence[SSEEvent]:
        """Return the events that were held back."""
        held = [each for each in (self._swapped, self._text) if each is not None]
        self._swapped = self._text = None
        return held

    def _add_once(self, events: list[SSEEvent]) -> list[SSEEvent]:
        """Change the first event with text as `line-separators` and `large-event` require."""
        adds_separators = "line-separators" in self._faults and not self._has_separators
        adds_large = "large-event" in self._faults and not self._has_large_event
        if not adds_separators and not adds_large:
            return events
        changed: list[SSEEvent] = []
        for event in events:
            chunk = parse_json(event.data)
            text = find_text(chunk)
            if text is not None:
                container, key = text
                if adds_separators and not self._has_separators:
                    self._has_separators = True
                    container[key] += _LINE_SEPARATORS
                if adds_large and not self._has_large_event:
                    self._has_large_event = True
                    chunk["padding"] = "x" * _LARGE_CHARS
                # The separators of the fault stay as they are; all others are escaped.
                data = orjson.dumps(chunk) if adds_separators else dump_json(chunk)
                event = replace(event, data=data)
            changed.append(event)
        return changed

    def _move_text(self, event: SSEEvent) -> Sequence[SSEEvent]:
        """Hold each event with text until the next event shows whether it is the last one."""
        chunk = parse_json(event.data)
        held, self._text = self._text, None
        if find_text(chunk) is not None:
            self._text = event
            return [] if held is None else [held]
        if held is None:
            return [event]
        if not has_finish_reason(chunk):
            return [held, event]
        if "text-after-finish" in self._faults:
            return [event, held]
        text = find_text(parse_json(held.data))
        if text is None or not add_text(chunk, text[0][text[1]]):
            return [held, event]
        return [replace(event, data=dump_json(chunk))]


def _cut_json(edited: _Edited) -> Sequence[SSEEvent]:
    data = edited.event.data or b""
    if edited.number != edited.value:
        return [edited.event]
    return [replace(edited.event, data=data[: len(data) // 2])]


def _precede(other: SSEEvent) -> Callable[[_Edited], Sequence[SSEEvent]]:
    """Return an edit that puts another event before event N."""
    return lambda edited: [other, edited.event] if edited.number == edited.value else [edited.event]


def _precede_first(change: Callable[[Any], Any]) -> Callable[[_Edited], Sequence[SSEEvent]]:
    """Return an edit that puts a changed copy of the first chunk before it, if it has choices."""

    def edit(edited: _Edited) -> Sequence[SSEEvent]:
        chunk = edited.chunk
        if edited.number != 1 or not isinstance(chunk, dict) or not chunk.get("choices"):
            return [edited.event]
        return [SSEEvent(dump_json(change(chunk))), edited.event]

    return edit


def _without_choices(chunk: Any) -> Any:
    return {**chunk, "choices": []}


def _with_usage(chunk: Any) -> Any:
    return {**chunk, "choices": [], "usage": _USAGE}


def _with_null_content(chunk: Any) -> Any:
    choice = chunk["choices"][0]
    empty = (
        {"delta": {"role": "assistant", "content": None}} if "delta" in choice else {"text": None}
    )
    return {**chunk, "choices": [{**choice, **empty, "finish_reason": None}]}


def _follow_with_usage(edited: _Edited) -> Sequence[SSEEvent]:
    chunk = edited.chunk
    if not isinstance(chunk, dict) or "choices" not in chunk:
        return [edited.event]
    return [edited.event, SSEEvent(dump_json(_with_usage(chunk)))]


def _remove_usage(edited: _Edited) -> Sequence[SSEEvent]:
    chunk = edited.chunk
    if not isinstance(chunk, dict):
        return [edited.event]
    names = ("usage", "prompt_eval_count", "eval_count")
    for holder in (chunk, chunk.get("message"), chunk.get("response")):
        if isinstance(holder, dict):
            for name in names:
                holder.pop(name, None)
    return [edited.with_chunk(chunk)]


def _add_members(edited: _Edited) -> Sequence[SSEEvent]:
    chunk = edited.chunk
    if not isinstance(chunk, dict):
        return [edited.event]
    note = {"nested": [1, None, {"deep": True}]}
    return [edited.with_chunk({"future_member": note, **chunk, "future_null": None})]


def _leave_out(condition: Callable[[Any], bool]) -> Callable[[_Edited], Sequence[SSEEvent]]:
    return lambda edited: [] if condition(edited.chunk) else [edited.event]


def _is_message_stop(chunk: Any) -> bool:
    return isinstance(chunk, dict) and chunk.get("type") == "message_stop"


def _has_text(chunk: Any) -> bool:
    return find_text(chunk) is not None


def _repeat(edited: _Edited) -> Sequence[SSEEvent]:
    return [edited.event] * (2 if edited.number == edited.value else 1)


def _repeat_finish(edited: _Edited) -> Sequence[SSEEvent]:
    return [edited.event] * (2 if has_finish_reason(edited.chunk) else 1)


def _skip(edited: _Edited) -> Sequence[SSEEvent]:
    return [] if edited.number == edited.value else [edited.event]


def _add_pings(edited: _Edited) -> Sequence[SSEEvent]:
    return [*[_PING] * int(edited.value), edited.event]


# In the order in which they are applied: what is added comes after what is left out.
_EDITS: Mapping[str, Callable[[_Edited], Sequence[SSEEvent]]] = {
    "malformed-event": _cut_json,
    "skip-event": _skip,
    "no-text": _leave_out(_has_text),
    "no-finish": _leave_out(has_finish_reason),
    "no-message-stop": _leave_out(_is_message_stop),
    "no-usage": _remove_usage,
    "double-finish": _repeat_finish,
    "repeat-event": _repeat,
    "unknown-members": _add_members,
    "usage-each": _follow_with_usage,
    "null-content": _precede_first(_with_null_content),
    "usage-first": _precede_first(_with_usage),
    "empty-choices": _precede_first(_without_choices),
    "unknown-event": _precede(_UNKNOWN),
    "pings": _add_pings,
    "empty-data": _precede(SSEEvent(b"")),
    "no-data": _precede(SSEEvent(None, (b"event: note",))),
}

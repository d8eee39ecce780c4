"""Faults that change only the form of a stream leave its events as they are, also in pairs."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emulator.middleware.faults.catalogue import EXCLUSIVE_GROUPS
from emulator.middleware.faults.events import EventSplitter
from emulator.middleware.faults.parser import parse_faults
from emulator.middleware.faults.steps import Write
from emulator.middleware.faults.stream import StreamFaults
from engine.backends.openai.event_stream import EventStreamParser

FORMS = (
    "crlf",
    "cr",
    "bom",
    "comment",
    "no-space",
    "multi-line-data",
    "id-and-retry",
    "event-names",
    "split-bytes",
    "split-character",
    "split-events",
    "split-lines",
    "comments",
    "unknown-fields",
    "invalid-fields",
    "blank-lines",
    "unescaped",
    "escaped",
    "buffer",
)
PAIRS = [
    pair
    for pair in combinations(FORMS, 2)
    if not any(set(pair) <= each for each in EXCLUSIVE_GROUPS)
]
# What a wrong parser or a wrong server could take for the end of a line, or for a field.
PIECES = (
    "\u0085",
    "\u2028",
    "\u2029",
    "\0",
    "\ufeff",
    "\r",
    "\n",
    "\r\n",
    "data: x\n\n",
    ": y",
    "ü茶",
)
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=3).map("".join)
# A name and an id, as in the streams of the Messages API and of jobs, and a text.
EVENT = st.tuples(st.sampled_from(["", "order"]), st.sampled_from(["", "1.1"]), TEXT)


def encode(name: str, event_id: str, text: str) -> bytes:
    name_line = f"event: {name}\n" if name else ""
    id_line = f"id: {event_id}\n" if event_id else ""
    data = json.dumps({"text": text}, ensure_ascii=False)
    return f"{name_line}{id_line}data: {data}\n\n".encode()


def read(stream: bytes, *faults: str) -> list[tuple[str, Any]]:
    """Return the names and the data of a stream's events, as they arrive with the faults."""
    parser, changed = EventStreamParser(), StreamFaults(parse_faults(",".join(faults)))
    events = [
        event
        for each in EventSplitter().feed(stream)
        for step in changed.feed(each)
        if isinstance(step, Write)
        for event in parser.feed(step.data)
    ]
    events += [
        event
        for step in changed.finish()
        if isinstance(step, Write)
        for event in parser.feed(step.data)
    ]
    assert parser.feed(b"\n\n") == []
    return [
        (event.name, event.data if event.data == "[DONE]" else json.loads(event.data))
        for event in events
    ]


@given(st.sampled_from([b"", b": open\n\n"]), st.lists(EVENT, min_size=1, max_size=2))
def test_stream_faults_of_the_form_keep_the_events(
    comment: bytes, events: list[tuple[str, str, str]]
) -> None:
    stream = comment + b"".join(encode(*event) for event in events) + b"data: [DONE]\n\n"
    expected: list[tuple[str, Any]] = [
        (name or "message", {"text": text}) for name, _, text in events
    ]
    expected.append(("message", "[DONE]"))
    named = [("chunk" if name == "message" else name, data) for name, data in expected]
    for faults in PAIRS:
        assert read(stream, *faults) == (named if "event-names" in faults else expected), faults

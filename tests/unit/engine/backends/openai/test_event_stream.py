"""The parser of event streams: each case as data, cut everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.backends.openai.event_stream import Event, EventStreamParser

# The loader in C takes an eighth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILE = Path(__file__).resolve().parents[4] / "data" / "event_streams.yaml"
CASES: list[dict[str, Any]] = _LOADER(_FILE.read_bytes()).get_single_data()


def parse(parts: Iterable[bytes]) -> tuple[list[Event], str, int | None]:
    """Return the events, and the last id and the reconnection time after them."""
    parser = EventStreamParser()
    events = [event for part in parts for event in parser.feed(part)]
    return events, parser.last_event_id, parser.retry_ms


def expect(case: dict[str, Any]) -> tuple[list[Event], str, int | None]:
    """Return what `parse` returns for a case."""
    events = [Event(**{"name": "message"} | event) for event in case["events"]]
    last = events[-1] if events else Event("message", "")
    return (
        events,
        case.get("last_event_id", last.last_event_id),
        case.get("retry_ms", last.retry_ms),
    )


def test_cases_have_a_name_of_their_own_and_a_source() -> None:
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        kind, _, rule = case["source"].partition(": ")
        assert kind in {"WHATWG", "Encoding", "WPT", "LaunchDarkly"}
        assert rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_parser_returns_the_events_wherever_the_stream_is_cut(case: dict[str, Any]) -> None:
    stream, expected = case["stream"].encode("latin-1"), expect(case)
    assert parse([stream]) == expected
    assert parse(bytes((value,)) for value in stream) == expected
    for at in range(len(stream) + 1):
        assert parse([stream[:at], b"", stream[at:]]) == expected, at


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_parser_returns_an_event_with_the_byte_that_ends_it(end: bytes) -> None:
    parser = EventStreamParser()
    stream = b"data: tea" + end + end.removesuffix(b"\n" if len(end) == 2 else b"")
    assert all(parser.feed(bytes((value,))) == [] for value in stream[:-1])
    assert parser.feed(stream[-1:]) == [Event("message", "tea")]


# Sizes around those of the buffers of clients, as in LaunchDarkly's payload size tests.
@pytest.mark.parametrize("size", [1, 1023, 1025, 4096, 8195, 65_536, 262_144])
def test_parser_returns_long_data(size: int) -> None:
    stream = b": " + b"y" * size + b"\ndata: " + b"x" * size + b"\n\n"
    parts = [stream[at : at + 1024] for at in range(0, len(stream), 1024)]
    assert parse(parts) == ([Event("message", "x" * size)], "", None)


def test_parser_returns_many_events_in_order() -> None:
    expected = [Event("message", str(number)) for number in range(100)]
    assert parse([b"".join(b"data: %d\n\n" % number for number in range(100))])[0] == expected


def test_parser_ignores_a_reconnection_time_of_too_many_digits() -> None:
    assert parse([b"retry: " + b"9" * 5000 + b"\ndata: tea\n\n"]) == (
        [Event("message", "tea")],
        "",
        None,
    )

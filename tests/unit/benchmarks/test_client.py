"""The parsing of complete answers in the benchmarks' client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.client import Reply, WrongAnswer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def reply(*blocks: bytes) -> Reply:
    """Return the answer for blocks that are read at intervals of a millisecond."""
    reads = [HEAD, *(b"%x\r\n%b\r\n" % (len(block), block) for block in blocks), b"0\r\n\r\n"]
    ends = [sum(map(len, reads[:count])) for count in range(1, len(reads) + 1)]
    times = [number * 1_000_000 for number in range(1, len(reads) + 1)]
    return Reply(0, b"".join(reads), times, ends)


def event(choice: dict[str, Any] | None) -> bytes:
    choices = [] if choice is None else [{"index": 0, **choice}]
    return b"data: " + json.dumps({"choices": choices}, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
COMPLETION = (
    event({"text": '"a"'}),
    event({"text": " b"}) + event({"text": " c"}),
    event({"text": "", "finish_reason": "stop"}) + DONE,
)
CHAT = (
    event({"delta": {"role": "assistant", "content": ""}}),
    event({"delta": {"content": '"a"'}}),
    event({"delta": {"content": " b c"}}),
    event({"delta": {}, "finish_reason": "stop"}) + event(None) + DONE,
)


@pytest.mark.parametrize("blocks", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_a_stream_has_one_text_whatever_its_route(blocks: tuple[bytes, ...]) -> None:
    assert reply(*blocks).text() == '"a" b c'


def test_events_are_counted_without_the_end() -> None:
    assert reply(*COMPLETION).events == 4
    assert reply(*CHAT).events == 5


def test_a_role_is_an_event_and_no_text() -> None:
    received = reply(*CHAT)

    assert received.first_event_ms == 2
    assert received.first_text_ms == 3


def test_an_answer_without_text_has_no_first_text() -> None:
    with pytest.raises(WrongAnswer, match="no text came"):
        _ = reply(event({"text": ""}) + DONE).first_text_ms


def test_a_stream_that_is_cut_short_has_no_text() -> None:
    with pytest.raises(WrongAnswer, match="did not end with"):
        reply(*COMPLETION[:2]).text()


def test_stamped_tokens_have_the_times_of_their_creation_and_receipt() -> None:
    received = reply(event({"text": "@500000;"}), event({"text": "@1500000;@1600000;"}), DONE)

    stamps = [(500_000, 2_000_000), (1_500_000, 3_000_000), (1_600_000, 3_000_000)]
    assert received.stamped() == stamps
    assert received.latencies_ms() == [1.5, 1.5, 1.4]

"""The steps that the faults of a stream require."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from emulator.middleware.faults import events
from emulator.middleware.faults.events import (
    EventSplitter,
    Pause,
    SSEEvent,
    Step,
    StreamEnd,
    StreamFaults,
    Write,
)
from emulator.middleware.faults.parser import parse_faults


def chunk(text: str, reason: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
BODY = chunk("") + chunk("grün") + chunk("", "stop") + DONE


def steps_of(faults: str, body: bytes = BODY) -> list[Step]:
    stream, splitter = StreamFaults(parse_faults(faults)), EventSplitter()
    steps = list(stream.begin())
    for event in splitter.feed(body):
        steps += stream.feed(event)
    return [*steps, *stream.finish()]


def written(steps: Iterable[Step]) -> bytes:
    return b"".join(step.data for step in steps if isinstance(step, Write))


def test_splitter_returns_complete_events() -> None:
    for at in range(len(BODY) + 1):
        splitter = EventSplitter()
        complete = [*splitter.feed(BODY[:at]), *splitter.feed(BODY[at:])]
        assert len(complete) == 4
        assert complete[-1] == SSEEvent(b"[DONE]")


def test_parse_separates_data_from_other_lines() -> None:
    event = SSEEvent.parse(b": note\nid: 1\ndata: a\ndata:b")
    assert event == SSEEvent(b"a\nb", (b": note", b"id: 1"))
    assert SSEEvent.parse(b": still here") == SSEEvent(None, (b": still here",))


def test_events_are_unchanged_without_a_fault_that_concerns_them() -> None:
    assert written(steps_of("drop-after=9", b": open\n\n" + BODY)) == b": open\n\n" + BODY


def test_comments_are_not_counted() -> None:
    steps = steps_of("drop-after=1", b": open\n\n: still here\n\n" + BODY)
    cut = steps.index(StreamEnd.CUT)
    assert written(steps[:cut]).count(b"data: ") == 1


def test_line_separators_are_added_only_to_the_first_text_of_a_chat() -> None:
    body = written(steps_of("line-separators", BODY + chunk("more")))
    assert body.count("grün\u0085\u2028\u2029".encode()) == 1
    assert body.count("\u2028".encode()) == 1


@pytest.mark.parametrize("output", [{"text": "a"}, {"choices": [{"text": "a"}]}])
def test_line_separators_are_added_only_to_text_in_the_output_of_a_job(output: Any) -> None:
    body = b"data: " + json.dumps({"output": output}).encode() + b"\n\n"
    has_separators = "\u2028".encode() in written(steps_of("line-separators", body))
    assert has_separators is ("text" in output)


@pytest.mark.parametrize("data", [b"plain", b"[1]", b'{"choices": 5}', b'{"choices": [5, {}]}'])
@pytest.mark.parametrize("fault", ["line-separators", "double-finish", "multi-line-data"])
def test_data_of_another_form_is_passed_on(fault: str, data: bytes) -> None:
    body = written(steps_of(fault, b"data: " + data + b"\n\n"))
    assert body.replace(b"\ndata: ", b"").replace(b" ", b"") == (
        b"data:" + data.replace(b" ", b"") + b"\n\n"
    )


def test_fields_of_an_event_are_kept() -> None:
    body = b"event: end\nid: end\ndata: {}\n\n"
    assert written(steps_of("event-names; id-and-retry", body)) == body


def test_event_without_choices_gets_no_empty_choices() -> None:
    body = b'data: {"output": {}}\n\n'
    assert written(steps_of("empty-choices", body)) == body


def test_text_after_done_needs_a_text() -> None:
    assert written(steps_of("text-after-done", chunk("") + DONE)) == chunk("") + DONE


def test_first_character_is_split_but_not_the_byte_order_mark() -> None:
    first, pause, second, *_ = steps_of("bom; split-character", chunk("grün"))
    assert isinstance(first, Write)
    assert isinstance(second, Write)
    assert first.data.startswith(b"\xef\xbb\xbfdata: ")
    assert first.data.endswith(b"gr\xc3")
    assert second.data.startswith(b"\xbcn")
    assert pause == Pause(events.WRITE_PAUSE_S)


def test_buffered_events_are_sent_before_a_cut() -> None:
    steps = steps_of("buffer; drop-after=2")
    cut = steps.index(StreamEnd.CUT)
    assert written(steps[:cut]) == chunk("") + chunk("grün")


def test_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BUFFERED_BYTES", 10)
    steps = steps_of("buffer")
    assert len(steps) == 4
    assert written(steps) == BODY


def test_stall_follows_the_first_event() -> None:
    first, pause, *_ = steps_of("stall=5")
    assert (first, pause) == (Write(chunk("")), Pause(5))


def test_slow_precedes_each_event() -> None:
    steps = steps_of("slow=0.5")
    assert [step == Pause(0.5) for step in steps] == [True, False, True, False, True, False, False]

"""The steps that the faults of a stream require."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from emulator.middleware.faults import encoding, steps
from emulator.middleware.faults.events import EventSplitter, SSEEvent
from emulator.middleware.faults.parser import parse_faults
from emulator.middleware.faults.steps import Pause, RawWrite, Step, StreamEnd, Write
from emulator.middleware.faults.stream import StreamFaults


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


@pytest.mark.parametrize(
    "output", [{"text": "a"}, {"choices": [{"text": "a"}]}, {"status": "a"}, "a"]
)
def test_line_separators_are_added_to_the_text_in_the_output_of_a_job(output: Any) -> None:
    body = b"data: " + json.dumps({"output": output}).encode() + b"\n\n"
    has_separators = "\u2028".encode() in written(steps_of("line-separators", body))
    assert has_separators is ("text" in str(output))


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
    assert pause == Pause(steps.WRITE_PAUSE_S)


def test_buffered_events_are_sent_before_a_cut() -> None:
    steps = steps_of("buffer; drop-after=2")
    cut = steps.index(StreamEnd.CUT)
    assert written(steps[:cut]) == chunk("") + chunk("grün")


def test_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_BUFFERED_BYTES", 10)
    steps = steps_of("buffer")
    assert len(steps) == 4
    assert written(steps) == BODY


def test_stall_follows_the_first_event() -> None:
    first, pause, *_ = steps_of("stall=5")
    assert (first, pause) == (Write(chunk("")), Pause(5))


def test_slow_precedes_each_event() -> None:
    steps = steps_of("slow=0.5")
    assert [step == Pause(0.5) for step in steps] == [True, False, True, False, True, False, False]


# -- events that are added, left out or moved -----------------------------------------------------


def data_of(faults: str, body: bytes = BODY) -> list[Any]:
    """Return the data of the events that a stream with faults has."""
    blocks = written(steps_of(faults, body)).decode().split("\n\n")
    data = [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def texts_of(faults: str, body: bytes = BODY) -> list[str]:
    """Return the text of each chunk, with `!` behind it if it says why the answer has ended."""
    return [
        each["choices"][0]["delta"].get("content", "")
        + "!" * bool(each["choices"][0]["finish_reason"])
        for each in data_of(faults, body)
        if each != "[DONE]" and each["choices"]
    ]


@pytest.mark.parametrize(
    ("faults", "texts"),
    [
        ("no-text", ["", "!"]),
        ("text-with-finish", ["", "grün!"]),
        ("text-after-finish", ["", "!", "grün"]),
        ("swap-events=1", ["grün", "", "!"]),
        ("swap-events=3", ["", "grün", "!"]),
        ("swap-events=9", ["", "grün", "!"]),
        ("unknown-members", ["", "grün", "!"]),
        ("usage-each", ["", "grün", "!"]),
        ("escaped", ["", "grün", "!"]),
    ],
)
def test_text_of_a_stream_is_moved_or_left_out(faults: str, texts: list[str]) -> None:
    assert texts_of(faults) == texts
    assert data_of(faults)[-1] == "[DONE]"


def test_usage_is_a_chunk_without_choices() -> None:
    assert data_of("usage-first")[0]["usage"]["total_tokens"] == 4
    assert [each["choices"] for each in data_of("usage-each")[1:-1:2]] == [[]] * 3


def test_content_is_null_before_the_first_event() -> None:
    assert data_of("null-content")[0]["choices"][0]["delta"]["content"] is None


def test_usage_is_removed_from_each_place_that_an_api_has() -> None:
    for body in ({"usage": 1}, {"message": {"usage": 1}}, {"response": {"usage": 1}}):
        assert "usage" not in json.dumps(data_of("no-usage", data_event(body))[0])


def data_event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def test_event_of_a_message_that_stops_it_is_missing() -> None:
    body = data_event({"type": "message_delta"}) + data_event({"type": "message_stop"})
    assert data_of("no-message-stop", body) == [{"type": "message_delta"}]


def test_added_events_precede_their_event() -> None:
    assert written(steps_of("no-data=2")).count(b"event: note\n\ndata: ") == 1
    assert data_of("unknown-event=1")[0] == {"type": "future.note", "note": "a later version"}
    assert written(steps_of("pings=2")).count(b'event: ping\ndata: {"type": "ping"}\n\n') == 6
    assert written(steps_of("comments=3")).count(b": comment\n\n") == 12


# -- the form of the lines and of the writes ------------------------------------------------------


def test_large_event_has_a_member_that_no_client_knows() -> None:
    [large] = [each for each in data_of("large-event")[:-1] if "padding" in each]
    assert len(large["padding"]) == 300_000


def test_unescaped_line_separators_are_sent_as_they_are() -> None:
    body = data_event({"text": "a\u2028b"})
    assert b"\\u2028" in body
    assert "a\u2028b".encode() in written(steps_of("unescaped", body))
    assert b"\\u00fc" in written(steps_of("escaped"))


@pytest.mark.parametrize(
    "faults",
    [
        *("unknown-members", "large-event", "no-usage", "null-content", "text-with-finish"),
        *("multi-line-data", "usage-first", "empty-choices"),
    ],
)
def test_line_separators_stay_escaped_with_other_faults(faults: str) -> None:
    body = chunk("a\u2028\u0085b").replace("\u2028".encode(), b"\\u2028")
    body = body.replace("\u0085".encode(), b"\\u0085") + chunk("", "stop") + DONE
    sent = written(steps_of(faults, body)).decode()
    assert sent.count("\\u2028") >= 1
    assert not {"\u2028", "\u0085"} & set(sent)


def test_fields_of_no_meaning_precede_the_data() -> None:
    first = written(steps_of("invalid-fields; unknown-fields")).split(b"data: ")[0]
    assert first.split(b"\n") == [
        *(b"id: fault\0-1", b"retry: soon"),
        *(b"note: none of the fields of the specification", b"note", b""),
    ]


def test_last_line_has_no_end() -> None:
    assert written(steps_of("no-blank-line")) == BODY[:-1]
    assert written(steps_of("no-blank-line; crlf")).endswith(b"data: [DONE]\r\n")
    assert written(steps_of("no-blank-line; no-done")) == BODY.removesuffix(DONE)[:-1]


@pytest.mark.parametrize("faults", ["split-lines", "split-lines; crlf", "split-lines; cr"])
def test_last_byte_of_each_line_end_arrives_apart(faults: str) -> None:
    writes = [step.data for step in steps_of(faults) if isinstance(step, Write)]
    assert len(writes) == 12
    assert all(len(each) >= 1 for each in writes)
    if "crlf" in faults:
        assert writes[0].endswith(b"}\r")
        assert writes[1:3] == [b"\n\r", b"\n"]


def test_halves_of_each_event_arrive_apart() -> None:
    steps = steps_of("split-events")
    assert len([step for step in steps if isinstance(step, Write)]) == 8
    assert written(steps) == BODY


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "end"),
    [
        ("reset-after=2", StreamEnd.RESET),
        ("half-close-after=2", StreamEnd.HALF_CLOSE),
        ("bad-chunk=2", StreamEnd.CUT),
        ("long-chunk=2", StreamEnd.CUT),
        ("bare-error=2", StreamEnd.COMPLETE),
        ("message-error=2", StreamEnd.COMPLETE),
        ("error-event=2; no-done", StreamEnd.COMPLETE),
    ],
)
def test_stream_ends_after_an_event(faults: str, end: StreamEnd) -> None:
    steps = steps_of(faults)
    before = steps[: steps.index(end)]
    assert written(before).startswith(chunk("") + chunk("grün"))
    assert b'"stop"' not in written(before)
    assert b"[DONE]" not in written(before)
    is_outside = [isinstance(step, RawWrite) for step in before]
    assert is_outside == [False, False] + [True] * ("chunk" in faults) + [False] * (
        "error" in faults
    )


def test_response_ends_in_the_middle_of_an_event() -> None:
    steps = steps_of("end-inside=2")
    body = written(steps[: steps.index(StreamEnd.COMPLETE)])
    assert body == (chunk("") + chunk("grün"))[: len(body)]
    assert not body.endswith(b"\n\n")

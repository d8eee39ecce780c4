from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from starlette.requests import Request

from emulator.autoscaling.worker_log import Source, WorkerLog
from emulator.status.log_stream import LogQuery, WorkerLogStream, read_log_query
from handler.errors import InvalidRequest
from tests.waiting import run_ready_tasks

DEADLINE_S = 30


def filled(count: int, *, max_lines: int = 5_000) -> WorkerLog:
    times = iter(range(1, 10_000))
    log = WorkerLog(max_lines=max_lines, clock=lambda: next(times) + 0.25)
    for number in range(1, count + 1):
        source: Source = "container" if number % 2 else "system"
        log.append(source, f"line {number}")
    return log


def parse(blocks: Sequence[bytes]) -> list[tuple[str, dict[str, str]]]:
    events = []
    for event in b"".join(blocks).decode().removesuffix("\n\n").split("\n\n"):
        number, data = event.split("\n")
        events.append((number.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
    return events


async def read(log: WorkerLog, query: LogQuery) -> list[tuple[str, dict[str, str]]]:
    """The events of a log that is closed."""
    log.close()
    async with asyncio.timeout(DEADLINE_S):
        blocks = [block async for block in WorkerLogStream(log, query).events()]
    return parse(blocks) if blocks else []


async def test_events_have_time_source_line_and_a_number_to_resume_at() -> None:
    events = await read(filled(2), LogQuery())
    assert events == [
        (
            "1970-01-01T00:00:01.250000Z/000000000001",
            {"ts": "1970-01-01T00:00:01.250000Z", "source": "container", "line": "line 1"},
        ),
        (
            "1970-01-01T00:00:02.250000Z/000000000002",
            {"ts": "1970-01-01T00:00:02.250000Z", "source": "system", "line": "line 2"},
        ),
    ]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (LogQuery(), [*range(21, 121)]),
        (LogQuery(tail=2), [119, 120]),
        (LogQuery(tail=0), []),
        (LogQuery(tail=2, sources=("container",)), [117, 119]),
        (LogQuery(since=119.25), [119, 120]),
        (LogQuery(since=118.5, tail=0), [119, 120]),
        (LogQuery(after=118, tail=0, since=1.0), [119, 120]),
        (LogQuery(after=120), []),
        (LogQuery(after=999), []),
    ],
)
async def test_stream_begins_at_the_position_in_the_query(
    query: LogQuery, numbers: list[int]
) -> None:
    events = await read(filled(120), query)
    assert [int(event_id.rpartition("/")[2]) for event_id, _ in events] == numbers


async def test_dropped_lines_are_counted_in_an_event_from_which_one_can_resume() -> None:
    log = filled(100, max_lines=10)
    events = await read(log, LogQuery(after=50))
    assert len(events) == 11
    event_id, data = events[0]
    assert event_id.endswith("/000000000090")
    assert data["source"] == "system"
    assert data["line"].startswith("40 lines were dropped")
    resumed = await read(log, LogQuery(after=90))
    assert resumed == events[1:]


async def test_reader_that_resumes_after_any_event_gets_all_following_lines() -> None:
    log = filled(30)
    full_log = await read(log, LogQuery(tail=30))
    for count in range(31):
        last_id = full_log[count - 1][0] if count else "x/000000000000"
        after = int(last_id.rpartition("/")[2])
        assert full_log[:count] + await read(log, LogQuery(after=after)) == full_log


async def test_stream_follows_the_log_to_the_workers_end() -> None:
    log = filled(1)
    stream = WorkerLogStream(log, LogQuery()).events()
    async with asyncio.timeout(DEADLINE_S):
        assert b"line 1" in await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await run_ready_tasks()
        log.append("container", "line 2")
        assert b"line 2" in await waiting
        log.close()
        assert [block async for block in stream] == []


async def test_reader_of_one_source_waits_for_a_line_of_that_source() -> None:
    log = WorkerLog()
    stream = WorkerLogStream(log, LogQuery(sources=("system",))).events()
    async with asyncio.timeout(DEADLINE_S):
        waiting = asyncio.ensure_future(anext(stream))
        await run_ready_tasks()
        log.append("container", "not for this reader")
        await run_ready_tasks()
        log.append("system", "ended")
        assert b"ended" in await waiting
    await stream.aclose()


async def test_line_separators_do_not_end_an_event() -> None:
    log = WorkerLog()
    log.append("container", "a\u2028data: b\u2029c\u0085d\x0be")
    log.close()
    (block,) = [block async for block in WorkerLogStream(log, LogQuery()).events()]
    assert len(block.decode().splitlines()) == 3
    assert parse([block])[0][1]["line"] == "a\u2028data: b\u2029c\u0085d\x0be"


def request(query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "query_string": query.encode(), "headers": raw})


def test_query_is_read_from_the_request() -> None:
    assert read_log_query(request()) == LogQuery()
    assert read_log_query(request("tail=5000&source=both")) == LogQuery(tail=5000)
    assert read_log_query(request("source=system")).sources == ("system",)
    for time in (
        "1970-01-01T00:00:09Z",
        "1970-01-01T01:00:09%2B01:00",
        "1970-01-01T01:00:09+01:00",
    ):
        assert read_log_query(request(f"since={time}")).since == 9
    resumed = read_log_query(request(last_event_id="1970-01-01T00:00:09Z/000000000042"))
    assert resumed.after == 42
    assert read_log_query(request(last_event_id="")) == LogQuery()


@pytest.mark.parametrize(
    ("query", "last_event_id", "parameter"),
    [
        ("source=stdout", None, "source"),
        ("tail=-1", None, "tail"),
        ("tail=5001", None, "tail"),
        ("tail=1e3", None, "tail"),
        ("tail=", None, "tail"),
        ("tail=%D9%A3", None, "tail"),
        ("since=yesterday", None, "since"),
        ("since=2026-11-27T09:30:00", None, "since"),
        ("since=", None, "since"),
        ("", "42", "Last-Event-ID"),
        ("", "a/b", "Last-Event-ID"),
        ("", "x/0000000000000000001", "Last-Event-ID"),
    ],
)
def test_query_that_cannot_be_read_is_refused_by_name(
    query: str, last_event_id: str | None, parameter: str
) -> None:
    headers = {} if last_event_id is None else {"last_event_id": last_event_id}
    with pytest.raises(InvalidRequest, match=f"^{parameter} must be ") as raised:
        read_log_query(request(query, **headers))
    assert raised.value.param == parameter

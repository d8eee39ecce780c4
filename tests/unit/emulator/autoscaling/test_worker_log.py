from __future__ import annotations

import asyncio

from emulator.autoscaling.worker_log import Source, WorkerLog, WorkerLogs
from tests.waiting import run_ready_tasks


def filled(count: int, max_lines: int = 99) -> WorkerLog:
    """A log of lines 1, 2, …; line N was written at N seconds, and even ones by the server."""
    times = iter(range(1, count + 1000))
    log = WorkerLog(clock=lambda: float(next(times)), max_lines=max_lines)
    for number in range(1, count + 1):
        source: Source = "container" if number % 2 else "system"
        log.append(source, f"line {number}")
    return log


def test_log_keeps_the_newest_lines() -> None:
    log = filled(10, max_lines=3)
    assert [line.text for line in log.lines_after(0)] == ["line 8", "line 9", "line 10"]
    assert (log.first_number, log.last_number) == (8, 10)


def test_log_drops_old_lines_above_its_limit_but_not_the_last_one() -> None:
    log = WorkerLog(max_chars=10)
    for text in ("a" * 6, "b" * 6, "c" * 4, "d" * 50):
        log.append("container", text)
    assert [line.text for line in log.lines_after(0)] == ["d" * 50]
    log.append("container", "e" * 10)
    assert [line.text for line in log.lines_after(0)] == ["e" * 10]


def test_lines_after_begins_behind_a_number_that_may_be_dropped() -> None:
    log = filled(10, max_lines=4)
    assert [line.number for line in log.lines_after(8)] == [9, 10]
    assert [line.number for line in log.lines_after(3)] == [7, 8, 9, 10]
    assert [line.number for line in log.lines_after(3, limit=2)] == [7, 8]
    assert log.lines_after(10) == log.lines_after(99) == []
    assert WorkerLog().lines_after(0) == []


def test_number_before_finds_a_time() -> None:
    log = filled(10)
    assert [log.number_before(at) for at in (0, 1, 3.5, 10, 11)] == [0, 0, 3, 9, 10]


def test_number_before_tail_counts_the_lines_of_a_source() -> None:
    log = filled(10)
    assert log.number_before_tail(2, ("container", "system")) == 8
    assert log.number_before_tail(2, ("container",)) == 6
    assert log.number_before_tail(99, ("system",)) == 1
    assert log.number_before_tail(0, ("container",)) == 10
    assert WorkerLog().number_before_tail(5, ("container",)) == 0


def test_last_printed_has_only_output_of_the_worker_without_empty_lines() -> None:
    log = filled(3)
    log.append("container", "")
    assert log.last_printed(9) == ["line 1", "line 3"]
    assert log.last_printed(1) == ["line 3"]


async def test_wait_for_line_wakes_every_reader_for_a_line_and_for_the_end() -> None:
    log = WorkerLog()
    async with asyncio.timeout(30):
        readers = [asyncio.create_task(log.wait_for_line(0)) for _ in range(2)]
        await run_ready_tasks()
        log.append("container", "one")
        await asyncio.gather(*readers)
        late = asyncio.create_task(log.wait_for_line(1))
        await run_ready_tasks()
        assert not late.done()
        log.close()
        await late
        await log.wait_for_line(1)


def test_logs_of_ended_workers_are_dropped_above_the_limit() -> None:
    logs = WorkerLogs(max_ended=2)
    for name in ("running", "a", "b", "c", "d"):
        log = logs.open("here", name)
        if name != "running":
            log.close()
    logs.open("here", "new")
    kept = [name for name in ("running", "a", "b", "c", "d", "new") if logs.find("here", name)]
    assert kept == ["running", "c", "d", "new"]
    assert logs.find("there", "new") is None


def test_only_output_of_a_worker_is_passed_on() -> None:
    printed: list[tuple[str, str, str]] = []
    logs = WorkerLogs(on_printed=lambda *line: printed.append(line))
    log = logs.open("ep", "w")
    log.append("container", "hello")
    log.append("system", "the worker starts")
    assert printed == [("ep", "w", "hello")]


async def test_catching_up_waits_for_the_lines_that_are_on_their_way() -> None:
    logs = WorkerLogs()
    log = logs.open("ep", "w")
    log.is_caught_up.clear()
    waiting = asyncio.create_task(logs.catch_up("ep", "w"))
    await run_ready_tasks()
    assert not waiting.done()
    log.is_caught_up.set()
    async with asyncio.timeout(30):
        await waiting
        await logs.catch_up("ep", "unknown")

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import pytest

from emulator.autoscaling.output_reader import OutputReader
from emulator.autoscaling.worker_log import WorkerLog
from tests.waiting import run_ready_tasks


async def read(
    printed: bytes, find_job: Callable[[], str | None] = lambda: None, **options: int
) -> WorkerLog:
    log = WorkerLog(find_job=find_job)
    stream = asyncio.StreamReader()
    stream.feed_data(printed)
    stream.feed_eof()
    async with asyncio.timeout(30):
        await OutputReader("w1", log, clock=lambda: 5.0, **options).read(stream)
    return log


def texts(log: WorkerLog) -> list[str]:
    return [line.text for line in log.lines_after(0)]


async def test_traceback_keeps_all_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines = ["Traceback (most recent call last):", '  File "handler.py", line 1', "", "ValueError"]
    log = await read("\n".join(lines).encode())
    assert texts(log) == lines
    assert caplog.messages == [f"w1: {line}" for line in lines if line]


async def test_line_of_the_sdk_is_printed_with_its_level_and_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    line = json.dumps({"requestId": "job-1", "message": "Failed:\n a reason", "level": "ERROR"})
    log = await read(line.encode() + b"\n")
    assert texts(log) == [line]
    assert caplog.messages == ["w1: Failed:", "w1:  a reason"]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert {record.__dict__["job_id"] for record in caplog.records} == {"job-1"}


@pytest.mark.parametrize(
    "line",
    [
        '{"requestId": cut',
        '{"requestId": null}',
        '{"requestId": null, "message": 5, "level": "INFO"}',
        "{}",
    ],
)
async def test_line_that_only_resembles_the_sdks_is_printed_unchanged(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await read(line.encode())
    assert caplog.messages == [f"w1: {line}"]


async def test_exception_has_the_job_of_the_line_before_when_several_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    exception = json.dumps({"error_message": "no", "error_traceback": "ValueError: no"}, indent=4)
    printed: list[tuple[str | None, str]] = [
        ("job-1", "Captured Handler Exception"),
        (None, exception),
        (None, exception),
        ("job-2", "Captured Handler Exception"),
        (None, "of another thread"),
    ]
    lines = [
        json.dumps({"requestId": job_id, "message": message, "level": "ERROR"})
        for job_id, message in printed
    ]
    log = await read("\n".join(lines).encode())
    jobs = ["job-1", "job-1", None, "job-2", None]
    assert [line.job_id for line in log.lines_after(0)] == jobs
    assert [record.__dict__.get("job_id") for record in caplog.records] == jobs
    assert caplog.messages[1] == "w1: ValueError: no"


async def test_exception_of_the_handler_is_printed_as_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    traceback = 'Traceback (most recent call last):\n  File "/handler.py", line 3\nValueError: no\n'
    fields = {"error_type": "<class 'ValueError'>", "error_message": "no"}
    message = json.dumps(fields | {"error_traceback": traceback}, indent=4)
    line = json.dumps({"requestId": None, "message": message, "level": "ERROR"})
    log = await read(line.encode(), find_job=lambda: "job-1")
    assert texts(log) == [line]
    assert caplog.messages == [f"w1: {each}" for each in traceback.splitlines()]
    assert {record.__dict__["job_id"] for record in caplog.records} == {"job-1"}


async def test_line_has_the_job_that_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = await read(b"step 1\n", find_job=lambda: "job-1")
    assert [line.job_id for line in log.lines_after(0)] == ["job-1"]
    assert caplog.records[0].__dict__["job_id"] == "job-1"


async def test_lines_of_the_sdk_without_a_job_have_no_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await read(b'{"requestId": null, "message": "Started.", "level": "WARN"}\n')
    (record,) = caplog.records
    assert (record.getMessage(), record.levelno) == ("w1: Started.", logging.WARNING)
    assert "job_id" not in record.__dict__


async def test_flood_is_in_the_log_and_counted_on_the_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    log = await read(b"".join(b"%d\n" % number for number in range(4_000)), max_logged_per_s=3)
    assert texts(log) == [str(number) for number in range(4_000)]
    assert caplog.messages == [
        *("w1: 0", "w1: 1", "w1: 2"),
        "w1: 3,997 more lines are in the worker's log only",
    ]


async def test_other_tasks_run_while_a_flood_is_read() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await run_ready_tasks(1)

    counter = asyncio.create_task(count_turns())
    await read(b"x\n" * 100_000, max_logged_per_s=1)
    counter.cancel()
    assert turns >= 12


async def test_key_of_the_worker_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = await read(b"GET /ping/w1?gpu=local&worker_key=own-_1&job_id=a\n")
    assert texts(log) == ["GET /ping/w1?gpu=local&worker_key=…&job_id=a"]
    assert "own-_1" not in caplog.text

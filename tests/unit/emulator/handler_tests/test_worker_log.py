"""The lines of workers, taken from the records that the server logs."""

from __future__ import annotations

import json
import logging

from emulator.handler_tests.worker_log import MAX_LINES, WorkerLog


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("any", logging.INFO, "", 0, message, arguments, None)


def sdk_line(message: str) -> str:
    return json.dumps({"requestId": "1", "message": message, "level": "INFO"})


def test_only_lines_of_workers_are_kept_once() -> None:
    log = WorkerLog()
    log.emit(record("%s: %s", "launched-0a1b2c-1", "hello: you"))
    log.emit(record("%s starts", "launched-0a1b2c-1"))
    log.emit(record("another line"))
    log.emit(record("%s: %s", "launched-0a1b2c-1", ""))
    assert log.take_lines() == ["hello: you", ""]
    assert log.take_lines() == []


def test_lines_of_the_sdk_about_each_job_are_left_out() -> None:
    log = WorkerLog()
    messages = ["Started.", "Finished.", "Jobs in queue: 1", '{\n  "error_type": "x"}', "mine"]
    for message in messages:
        log.emit(record("%s: %s", "launched-0a-1", sdk_line(message)))
    log.emit(record("%s: %s", "launched-0a-1", '{"requestId": cut'))
    log.emit(record("%s: %s", "launched-0a-1", "Started."))
    assert log.take_lines() == [sdk_line("mine"), '{"requestId": cut', "Started."]


def test_number_of_lines_is_bounded() -> None:
    log = WorkerLog()
    for number in range(MAX_LINES + 5):
        log.emit(record("%s: %s", "launched-0a-1", number))
    lines = log.take_lines()
    assert (len(lines), lines[0]) == (MAX_LINES, "5")

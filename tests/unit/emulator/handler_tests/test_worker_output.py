from __future__ import annotations

import json

from emulator.autoscaling.worker_log import WorkerLogs
from emulator.handler_tests.worker_output import MAX_LINES, WorkerOutput


def sdk_line(message: str) -> str:
    return json.dumps({"requestId": "1", "message": message, "level": "INFO"})


def test_take_lines_returns_only_new_lines_of_the_endpoint() -> None:
    logs = WorkerLogs()
    output = WorkerOutput(logs, "here")
    first, second, other = logs.open("here", "a"), logs.open("here", "b"), logs.open("there", "c")
    first.append("system", "a starts")
    first.append("container", "hello: you")
    other.append("container", "of another endpoint")
    assert output.take_lines() == ["hello: you"]
    second.append("container", "")
    first.append("container", "more")
    assert output.take_lines() == ["more", ""]
    assert output.take_lines() == []


def test_lines_of_the_sdk_about_each_job_are_left_out() -> None:
    logs = WorkerLogs()
    log = logs.open("here", "a")
    messages = ["Started.", "Finished.", "Jobs in queue: 1", '{\n  "error_type": "x"}', "mine"]
    for message in messages:
        log.append("container", sdk_line(message))
    log.append("container", '{"requestId": cut')
    log.append("container", "Started.")
    assert WorkerOutput(logs, "here").take_lines() == ["mine", '{"requestId": cut', "Started."]


def test_number_of_lines_is_bounded() -> None:
    logs = WorkerLogs()
    log = logs.open("here", "a")
    for number in range(MAX_LINES + 5):
        log.append("container", str(number))
    lines = WorkerOutput(logs, "here").take_lines()
    assert (len(lines), lines[0]) == (MAX_LINES, "5")

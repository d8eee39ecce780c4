"""The exception of a handler as text: the traceback without the frames of the SDK."""

from __future__ import annotations

import json

import pytest

from emulator.runpod.handler_exception import format_exception, read_exception

# As SDK 1.12 sends it.
TRACEBACK = """\
Traceback (most recent call last):
  File "/venv/site-packages/runpod/serverless/modules/rp_job.py", line 257, in run_job
    handler_return = handler(job)
                     ^^^^^^^^^^^^
  File "/p/handler.py", line 12, in handler
    return load(job["input"])
           ^^^^^^^^^^^^^^^^^^
ValueError: the weights are on fire
"""


def test_traceback_begins_with_the_frames_of_the_handler() -> None:
    text = format_exception({"error_message": "x", "error_traceback": TRACEBACK})
    assert text.splitlines() == [
        "Traceback (most recent call last):",
        '  File "/p/handler.py", line 12, in handler',
        '    return load(job["input"])',
        "           ^^^^^^^^^^^^^^^^^^",
        "ValueError: the weights are on fire",
    ]


def test_exception_group_begins_with_the_frames_of_the_handler() -> None:
    group = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/venv/runpod/serverless/modules/rp_job.py", line 259, in run_job',
        "  |     await handler_return",
        '  |   File "/p/handler.py", line 17, in handler',
        "  |     async with asyncio.TaskGroup() as tasks:",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/p/handler.py", line 16, in load',
        "    |     raise RuntimeError(name)",
        "    | RuntimeError: a",
        "    +------------------------------------",
    ]
    text = format_exception({"error_message": "x", "error_traceback": "\n".join(group) + "\n"})
    assert text.splitlines() == [group[0], *group[3:]]


def test_exception_without_a_traceback_is_its_type_and_message() -> None:
    fields = {"error_type": "<class 'KeyError'>", "error_message": "'x'"}
    assert format_exception(fields) == "KeyError: 'x'"
    assert format_exception({}) == ""


@pytest.mark.parametrize("text", ["no", "{cut", "[]", '{"message": "m"}'])
def test_other_texts_are_no_exception(text: str) -> None:
    assert read_exception(text) is None


def test_exception_is_read_from_its_json() -> None:
    fields = {"error_type": "<class 'KeyError'>", "error_message": "'x'"}
    assert read_exception(json.dumps(fields, indent=4)) == fields

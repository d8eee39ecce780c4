"""The error of a job as a text: of the SDK's JSON, the traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulator.handler_tests.job_error import format_job_error

TRACEBACK = 'Traceback (most recent call last):\n  File "handler.py"\nValueError: no\n'


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        ("a sentence", "a sentence"),
        ("{not json", "{not json"),
        ('{"error_message": "no", "error_traceback": " "}', "no"),
        (json.dumps({"error_message": "no", "error_traceback": TRACEBACK}), TRACEBACK.strip()),
        ({"error_traceback": TRACEBACK}, TRACEBACK.strip()),
        ('{"é": 1}', '{\n  "é": 1\n}'),
        (["a"], "['a']"),
    ],
)
def test_format_job_error(error: Any, text: str) -> None:
    assert format_job_error(error) == text

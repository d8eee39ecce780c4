"""Compare the end of a job with what a test expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.handler_tests.json_diff import diff_json
from emulator.tests_file.reader import NOT_SET, HandlerTest


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a job is not what a test expects: a sentence, and the differences of the outputs."""

    reason: str
    diff: Sequence[str] = ()


def find_mismatch(test: HandlerTest, status: str, output: Any) -> Mismatch | None:
    """Return why a job's final status or output is wrong; None if both are as expected."""
    if status != test.expected_status:
        return Mismatch(f"the status is {status}, expected {test.expected_status}")
    if test.expected_output is not NOT_SET and not is_equal(test.expected_output, output):
        return Mismatch("the output differs", diff_json(test.expected_output, output))
    if test.expected_part is not NOT_SET and not contains(output, test.expected_part):
        # Other keys of the output are left out, because they are not compared.
        part = select_part(output, test.expected_part)
        return Mismatch(
            "the output does not contain what is expected", diff_json(test.expected_part, part)
        )
    return None


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; 1 equals 1.0, but not true."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            is_equal(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return bool(first == second)


def contains(output: Any, part: Any) -> bool:
    """Return whether `output` has everything that `part` has.

    An object may have more keys than the part, at any depth. Arrays must have the same length.
    Other values must be equal.
    """
    if isinstance(output, dict) and isinstance(part, dict):
        return all(key in output and contains(output[key], part[key]) for key in part)
    if isinstance(output, list) and isinstance(part, list):
        return len(output) == len(part) and all(map(contains, output, part))
    return is_equal(output, part)


def select_part(output: Any, part: Any) -> Any:
    """Return `output` without the object keys that `part` does not have."""
    if isinstance(output, dict) and isinstance(part, dict):
        return {key: select_part(value, part[key]) for key, value in output.items() if key in part}
    if isinstance(output, list) and isinstance(part, list) and len(output) == len(part):
        return list(map(select_part, output, part))
    return output

"""Limit the run time of untrusted Python code, such as a model's chat template."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimitExceededError(BaseException):
    """The code did not end within the time limit.

    It is a `BaseException` because a handler for `Exception` in the code would catch it and
    continue, and the code would not be checked again.
    """


def run_with_time_limit(limit_s: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, which may take at most `limit_s` seconds.

    A trace function checks the time on every line. That is slow, so use it only for work that is
    done once. It works on every thread; a signal would work only on the main thread.

    Raises:
        TimeLimitExceededError: the work took longer.
    """
    deadline = time.monotonic() + limit_s

    def check_deadline(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > deadline:
            raise TimeLimitExceededError
        return check_deadline

    previous = sys.gettrace()
    sys.settrace(check_deadline)
    try:
        return work()
    finally:
        sys.settrace(previous)

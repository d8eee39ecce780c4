"""The time limit for code that may never end."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType

import pytest

from engine.backends.rkllm.time_limit import TimeLimitExceededError, run_with_time_limit


def endless() -> None:
    number = 0
    while True:
        number += 1


def test_result_within_the_limit_is_returned() -> None:
    before = sys.gettrace()
    assert run_with_time_limit(10, lambda: sum(range(10))) == 45
    assert sys.gettrace() is before


def test_endless_code_is_ended() -> None:
    before = sys.gettrace()
    with pytest.raises(TimeLimitExceededError):
        run_with_time_limit(0.05, endless)
    assert sys.gettrace() is before


def test_code_that_catches_exceptions_is_ended() -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):
                endless()

    with pytest.raises(TimeLimitExceededError):
        run_with_time_limit(0.05, stubborn)


def test_limit_works_on_any_thread() -> None:
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(TimeLimitExceededError):
            run_with_time_limit(0.05, endless)
        ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ended.wait(20)
    thread.join(20)


def test_exception_of_the_code_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_with_time_limit(10, lambda: 1 / 0)


def test_previous_trace_function_is_restored() -> None:
    def look(frame: FrameType, event: str, argument: object) -> None: ...

    before = sys.gettrace()
    sys.settrace(look)
    try:
        run_with_time_limit(10, lambda: sum(range(10)))
        assert sys.gettrace() is look
    finally:
        sys.settrace(before)

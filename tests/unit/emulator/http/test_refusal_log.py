"""Warnings about refused workers: one a minute for each."""

from __future__ import annotations

import pytest

from emulator.http.refusal_log import RefusalLog


def test_refusal_log_names_each_caller_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 30.0, 59.0, 59.0, 61.0])
    refusals = RefusalLog(lambda: next(times))
    for _ in range(3):
        refusals.record("w1", "it has no key")
    refusals.record("w2", "it has no key")
    assert len(caplog.messages) == 2
    refusals.record("w1", "it has no key")
    assert caplog.messages[-1] == "a call of the worker w1 was refused: it has no key"
    assert len(caplog.messages) == 3


def test_refusal_log_forgets_the_oldest_caller(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(lambda: 0.0)
    for number in range(1_001):
        refusals.record(f"w{number}", "why")
    caplog.clear()
    refusals.record("w1", "why")
    assert caplog.messages == []
    refusals.record("w0", "why")
    assert len(caplog.messages) == 1

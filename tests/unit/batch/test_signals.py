"""The signals that stop a command."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from batch.cli.signals import StopSignals


@contextmanager
def hang_up_handled_by(handler: signal.Handlers) -> Iterator[None]:
    previous = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


async def wait_for(signals: StopSignals, duration_s: float) -> None:
    with signals.handling(signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(duration_s)


async def test_closed_terminal_cancels_the_task() -> None:
    signals = StopSignals()
    with hang_up_handled_by(signal.SIG_DFL), pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wait_for(signals, 60))
    assert signals.first_signal == "SIGHUP"


async def test_closed_terminal_is_ignored_with_nohup() -> None:
    signals = StopSignals()
    with hang_up_handled_by(signal.SIG_IGN):
        await asyncio.create_task(wait_for(signals, 0.01))
    assert signals.count == 0

"""Virtual time for tests of code that waits: minutes pass at once, and at the same moment each run.

The fixture `clock` is for tests without threads, sockets and processes. Time does not pass while
code runs. When no task is ready, it jumps to the next timer of the event loop. `time.monotonic`
and `time.time` follow it.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.waiting import run_ready_tasks


class VirtualClock:
    """A monotonic clock and a system clock that only timers of the event loop advance."""

    def __init__(self) -> None:
        # Whole seconds, so that the sums of short delays are exact.
        self._monotonic_start, self._system_start = int(time.monotonic()), int(time.time())
        self.elapsed_s = 0.0
        # How often a timer of any task was waited for.
        self.waits = 0

    def monotonic(self) -> float:
        return self._monotonic_start + self.elapsed_s

    def system(self) -> float:
        return self._system_start + self.elapsed_s

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass; all tasks that are due by then have run when this returns."""
        await asyncio.sleep(seconds)
        await run_ready_tasks()


class JumpingSelector(selectors.BaseSelector):
    """Jumps to the next timer of the event loop where another selector would wait for it."""

    def __init__(self, selector: selectors.BaseSelector, clock: VirtualClock) -> None:
        self._selector = selector
        self._clock = clock

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files; without any, let the time pass that the caller wants to wait.

        Raises:
            RuntimeError: the caller would wait forever, because all tasks wait for each other.
        """
        ready = self._selector.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: no task is ready, and no timer will wake one")
            if timeout > 0:
                self._clock.elapsed_s += timeout
                self._clock.waits += 1
        return ready


@contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Give the running event loop, and all code of its thread, virtual time in this context."""
    virtual_clock = VirtualClock()
    loop: Any = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patches:
        # An event loop takes a selector only when it is made, and pytest-asyncio has made this one.
        patches.setattr(loop, "_selector", JumpingSelector(loop._selector, virtual_clock))
        # Servers of other tests may run on threads: a timer of theirs that is set in virtual time
        # would be late by as much as this test lets pass.
        for name, virtual in (
            ("monotonic", virtual_clock.monotonic),
            ("time", virtual_clock.system),
        ):
            patches.setattr(time, name, _for_this_thread(virtual, getattr(time, name)))
        yield virtual_clock


def _for_this_thread(
    virtual: Callable[[], float], real: Callable[[], float]
) -> Callable[[], float]:
    """Return a clock that is virtual on the calling thread, and real on all others."""
    thread = threading.get_ident()
    return lambda: virtual() if threading.get_ident() == thread else real()


@pytest.fixture
async def clock() -> AsyncIterator[VirtualClock]:
    """Virtual time while the test runs."""
    with virtual_time() as virtual_clock:
        yield virtual_clock

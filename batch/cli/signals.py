"""What Ctrl-C and SIGTERM do to a command that has work under way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopSignals:
    """The first signal asks for an end, the second one does not wait for it.

    `name` is of the first one, and empty before; `times` is how many came. Owned by the event loop.
    """

    def __init__(self) -> None:
        self.name = ""
        self.times = 0
        # None while there is nothing that could be ended in order.
        self.act: Callable[[], object] | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to signals while this lasts, in the task that is to be ended."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(name: str) -> None:
            self.times += 1
            self.name = self.name or name
            at_once = self.times > 1 or self.act is None
            if at_once and task is not None:
                task.cancel()
            elif self.act is not None:
                self.act()

        numbers = (signal.SIGINT, signal.SIGTERM)
        for each in numbers:
            loop.add_signal_handler(each, stop, each.name)
        try:
            yield
        finally:
            for each in numbers:
                loop.remove_signal_handler(each)

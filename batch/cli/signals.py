"""Graceful stop of a command on SIGINT (Ctrl-C) and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopSignals:
    """Starts a graceful stop on the first signal and cancels the task on the second.

    `first_signal` is the name of the first signal, empty before it; `count` is the number of
    signals received. Owned by the event loop.
    """

    def __init__(self) -> None:
        self.first_signal = ""
        self.count = 0
        # Starts the graceful stop. If unset, the first signal cancels the task.
        self.begin_stop: Callable[[], object] | None = None

    @contextmanager
    def handling(self, *others: signal.Signals) -> Iterator[None]:
        """Handle signals within the context, which the task to stop must enter.

        `others` are handled too, unless this process ignores them, as with `nohup`.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def on_signal(name: str) -> None:
            self.count += 1
            self.first_signal = self.first_signal or name
            if self.begin_stop is not None and self.count == 1:
                self.begin_stop()
            elif task is not None:
                task.cancel()

        heeded = [each for each in others if signal.getsignal(each) is not signal.SIG_IGN]
        signals = (signal.SIGINT, signal.SIGTERM, *heeded)
        for each in signals:
            loop.add_signal_handler(each, on_signal, each.name)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)

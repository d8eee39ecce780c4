"""A fixed number of threads that run queued functions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


class WorkerThreads:
    """Threads that run functions from one queue; any thread may call `put`.

    `concurrent.futures` makes a future for each function, with a lock and a condition, and here no
    caller needs one: a short run takes a fifth less processor time without them. The queue is
    unbounded, because callers put only as many functions as may run at once. The threads are
    daemons, because one that is stuck in a native library must not keep the process from ending.
    """

    def __init__(self, count: int, name: str) -> None:
        """Start the threads. Raises ValueError if `count` is below 1."""
        if count < 1:
            raise ValueError(f"there must be at least one thread, got {count}")
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, work: Callable[[], object]) -> None:
        """Run a function on the next free thread; an exception is logged."""
        self._queue.put(work)

    def end(self) -> None:
        """End the threads after all queued functions have run, without waiting for them."""
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        """Wait until all queued functions have run and the threads have ended."""
        self.end()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:
                # Keep the thread for the next function, whatever the exception was.
                logger.exception("a thread of the engine raised")
            # Free the objects that the function holds before waiting for the next one.
            del work

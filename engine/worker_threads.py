"""Threads that do one thing after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


class WorkerThreads:
    """So many threads that share one queue of things to do.

    `concurrent.futures` makes a future of each, with a lock and a condition, and here nobody asks
    for one: without them a short run takes a fifth less of the processor. Nothing is bounded:
    callers put no more than may run at once. The threads do not keep the process from ending, for
    one may be stuck in a native library. Any thread may call `put`.
    """

    def __init__(self, count: int, name: str) -> None:
        """Start them. Raises ValueError where there is to be none."""
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
        """Have something done by the next thread that is free; what it raises is logged."""
        self._queue.put(work)

    def end(self) -> None:
        """Let each thread end when all that was put has been done, and wait for none."""
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        """Wait until all that was put has been done and the threads have ended."""
        self.end()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:
                # Whatever it was: the next one needs a thread.
                logger.exception("a thread of the engine raised")
            # What it held must not wait for the next one.
            del work

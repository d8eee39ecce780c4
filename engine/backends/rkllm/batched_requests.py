"""Who runs with whom, and in which order: static batches, one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from engine.backends.base import RunResult
from engine.backends.rkllm.batch import Batch, BatchedRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long a batch waits for one more that would fill it; a token takes an NPU 30 to 130 ms.
GATHER_S = 0.002


@dataclass(slots=True, eq=False)
class _ExclusiveTask:
    """Something to do on the handle while no batch runs."""

    work: Callable[[], None]
    woken: threading.Event = field(default_factory=threading.Event)
    shares: object = field(default_factory=object)


class BatchScheduler:
    """Forms batches out of those who wait, and has them run.

    The oldest leads; those that may share its run go with it, oldest first, up to `most`. What is
    no generation takes its turn by age like them. So nobody is overtaken for longer than the run
    that is under way and those of older ones: nobody starves. A batch is static: who comes when one
    has begun waits for its end.

    `run` is called by a thread of the class's own, which owns the handle, since the thread of a
    request that has ended must be free at once. Requests' threads wait in `run`, as many as the
    backend has slots, which bounds those who wait; `alone` is for one thread more. `abort` is
    called by a request's thread.
    """

    def __init__(
        self, most: int, run: Callable[[Batch], None], abort: Callable[[Batch], None]
    ) -> None:
        self._most = most
        self._run = run
        self._abort = abort
        self._changed = threading.Condition()
        self._waiting: list[BatchedRequest | _ExclusiveTask] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="rkllm-batches", daemon=True)
        self._thread.start()

    def run(self, member: BatchedRequest) -> RunResult:
        """Have a request run, and return at its end or after its abort, whatever the others do.

        Raises:
            BackendFailed: the run it was in failed.
            ModelLoadFailed: the model was to be loaded again for it.
        """
        self._put(member)
        member.woken.wait()
        with self._changed:
            if member in self._waiting:
                self._waiting.remove(member)
        batch = member.batch
        if batch is not None and batch.leave(member):
            if batch.stopped:
                self._abort(batch)
            batch.returned.wait()
        if member.error is not None:
            raise member.error
        return member.end()

    def alone(self, work: Callable[[], T]) -> T:
        """Do something on the handle between two batches; return or raise what that does."""
        done: Future[T] = Future()

        def step() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._put(_ExclusiveTask(step))
        return done.result()

    def close(self) -> None:
        """End the thread; called when nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _put(self, one: BatchedRequest | _ExclusiveTask) -> None:
        with self._changed:
            self._waiting.append(one)
            self._changed.notify_all()

    def _work(self) -> None:
        while (chosen := self._next()) is not None:
            if isinstance(chosen, _ExclusiveTask):
                chosen.work()
                continue
            error: Exception | None = None
            try:
                self._run(chosen)
            except Exception as raised:
                # Told to whom it concerns: it is raised again on the threads of the members.
                error = raised
            chosen.close(error)

    def _next(self) -> Batch | _ExclusiveTask | None:
        """Wait for what is to be done next, None at the end."""
        with self._changed:
            while not (there := self._gathered()):
                if self._closed:
                    return None
                self._changed.wait()
            for one in there:
                self._waiting.remove(one)
            if isinstance(there[0], _ExclusiveTask):
                return there[0]
            # Under the same lock: whoever is not waiting any more has a batch.
            batch = Batch([one for one in there if isinstance(one, BatchedRequest)], self._most)
        logger.debug("a batch of %d begins", len(batch))
        return batch

    def _gathered(self) -> list[BatchedRequest | _ExclusiveTask]:
        """Return the oldest with those that go with it, after a moment for more to come."""
        now = time.monotonic()
        latest, until = now + self._most * GATHER_S, now + GATHER_S
        # There are no more slots than places: when so many wait, nobody else can come.
        while (there := self._together()) and len(self._waiting) < self._most:
            count, left = len(self._waiting), min(until, latest) - time.monotonic()
            if left <= 0 or isinstance(there[0], _ExclusiveTask):
                break
            self._changed.wait(left)
            if len(self._waiting) > count:
                until = time.monotonic() + GATHER_S
        return there

    def _together(self) -> list[BatchedRequest | _ExclusiveTask]:
        ready = [one for one in self._waiting if not one.woken.is_set()]
        return [one for one in ready if one.shares == ready[0].shares][: self._most]

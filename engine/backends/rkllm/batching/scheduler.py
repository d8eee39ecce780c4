"""Schedule requests into static batches, which run one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from engine.backends.base import RunResult
from engine.backends.rkllm.batching.batch import Batch, BatchedRequest
from engine.backends.rkllm.printed.library_output import printed_error
from engine.backends.rkllm.runs.run_result import is_short

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long a batch that is not full waits for one more request. A token takes an NPU 30 to 130 ms.
GATHER_WINDOW_S = 0.002


@dataclass(slots=True, eq=False)
class _ExclusiveTask:
    """A task that needs the handle while no batch runs, such as an embedding."""

    task: Callable[[], None]
    wakeup: threading.Event = field(default_factory=threading.Event)
    batch_key: object = field(default_factory=object)


class BatchScheduler:
    """Forms batches from waiting requests and runs them.

    A batch consists of the oldest waiting request and the requests that may share its run, oldest
    first, up to `max_requests`. Exclusive tasks are ordered by age too. So no request starves: it
    waits at most for the active run and for the runs of older requests. A batch is static: a
    request that arrives after its start waits for the next one.

    The scheduler's own thread owns the handle and calls `run`, so that the thread of a request
    whose answer has ended is free at once. Requests' threads, at most one per slot of the backend,
    wait in `run` and call `abort`. One more thread may call `run_exclusively`.
    """

    def __init__(
        self, max_requests: int, run: Callable[[Batch], None], abort: Callable[[Batch], None]
    ) -> None:
        self._max_requests = max_requests
        self._run = run
        self._abort = abort
        self._changed = threading.Condition()
        self._waiting: list[BatchedRequest | _ExclusiveTask] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run_loop, name="rkllm-batches", daemon=True)
        self._thread.start()

    def run(self, request: BatchedRequest) -> RunResult:
        """Run a request; return when its own answer has ended or was aborted.

        Raises:
            BackendFailed: the run failed.
            ModelLoadFailed: the model had to be reloaded for the request, and that failed.
        """
        self._enqueue(request)
        request.wakeup.wait()
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)
        batch = request.batch
        if batch is not None and (batch.leave(request) or _may_have_failed(request, batch)):
            if batch.stopped:
                self._abort(batch)
            batch.returned.wait()
        if request.error is not None:
            raise request.error
        if batch is not None and batch.printed_error and _is_judged(request):
            raise printed_error(batch.printed_error)
        return request.result()

    def run_exclusively(self, task: Callable[[], T]) -> T:
        """Run a task between two batches; return its result or raise its exception."""
        future: Future[T] = Future()

        def run_task() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        self._enqueue(_ExclusiveTask(run_task))
        return future.result()

    def close(self) -> None:
        """Stop the thread; the caller makes sure that no request waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _enqueue(self, item: BatchedRequest | _ExclusiveTask) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()

    def _run_loop(self) -> None:
        while (item := self._wait_for_next()) is not None:
            if isinstance(item, _ExclusiveTask):
                item.task()
                continue
            error: Exception | None = None
            try:
                self._run(item)
            except Exception as run_error:
                # Raised again on the threads of the batch's requests.
                error = run_error
            item.finish(error)

    def _wait_for_next(self) -> Batch | _ExclusiveTask | None:
        """Wait for the next batch or task; return None after `close`."""
        with self._changed:
            while not (ready := self._gather()):
                if self._closed:
                    return None
                self._changed.wait()
            for item in ready:
                self._waiting.remove(item)
            if isinstance(ready[0], _ExclusiveTask):
                return ready[0]
            # Created under the same lock: a request that is no longer waiting has a batch.
            requests = [item for item in ready if isinstance(item, BatchedRequest)]
            batch = Batch(requests, self._max_requests)
        logger.debug("a batch of %d begins", len(batch))
        return batch

    def _gather(self) -> list[BatchedRequest | _ExclusiveTask]:
        """Return the oldest item and those compatible with it, after a short wait for more."""
        now = time.monotonic()
        deadline, until = now + self._max_requests * GATHER_WINDOW_S, now + GATHER_WINDOW_S
        # There are as many slots as requests in a batch: if all are waiting, no more can arrive.
        while (ready := self._find_compatible()) and len(self._waiting) < self._max_requests:
            waiting_count, remaining_s = len(self._waiting), min(until, deadline) - time.monotonic()
            if remaining_s <= 0 or isinstance(ready[0], _ExclusiveTask):
                break
            self._changed.wait(remaining_s)
            if len(self._waiting) > waiting_count:
                until = time.monotonic() + GATHER_WINDOW_S
        return ready

    def _find_compatible(self) -> list[BatchedRequest | _ExclusiveTask]:
        ready = [item for item in self._waiting if not item.wakeup.is_set()]
        return [item for item in ready if item.batch_key == ready[0].batch_key][
            : self._max_requests
        ]


def _is_judged(request: BatchedRequest) -> bool:
    """Return whether an error that the library printed is one of this answer too."""
    return is_short(request.tokens) and not request.was_aborted


def _may_have_failed(request: BatchedRequest, batch: Batch) -> bool:
    """Return whether only the end of the run shows that the answer is none.

    A short answer waits for that if the library has printed something, which is rare.
    """
    return request.is_empty or (_is_judged(request) and batch.has_printed())

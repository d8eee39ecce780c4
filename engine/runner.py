"""Runs a backend's blocking calls on threads, wherever the backend lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from engine.backends.base import Backend, SideCall
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, EngineError, RequestRejected
from engine.generation import Generation
from engine.output import Delta, Finish
from engine.request import Prompt, SamplingParams
from engine.worker_threads import WorkerThreads

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where a runner's results go; called from the runner's threads."""

    def delta(self, run_id: int, delta: Delta) -> None:
        """One token's text; waits only for a parent that does not read."""

    def finished(self, run_id: int, finish: Finish) -> None:
        """The run has ended and its thread is free."""

    def aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """The run has ended, one way or other, after an abort; its thread is free."""

    def failed(self, run_id: int, error: EngineError) -> None:
        """The run has ended without an answer and its thread is free."""


class Runner:
    """Owns one backend and the threads that its runs and side calls block.

    The same class serves in the host process and in the caller's own (thread isolation), so both
    run the same code. `start` is called only while a slot is free, hence never more runs than
    threads; side calls (`SideCall`) have a thread of their own so that they do not wait
    behind a generation, and vectors another one, since each takes as long as a prefill.
    """

    def __init__(self, backend: Backend, sink: Sink) -> None:
        self._backend = backend
        self._sink = sink
        self._lock = threading.Lock()
        self._generations: dict[int, Generation] = {}

    def load(self) -> Capabilities:
        """Load the backend on the calling thread. Raises ModelLoadFailed."""
        capabilities = self._backend.load()
        self._runs = WorkerThreads(capabilities.slots, "run")
        self._calls = WorkerThreads(1, "call")
        self._embeds = WorkerThreads(1, "embed")
        return capabilities

    def start(self, run_id: int, prompt: Prompt, sampling: SamplingParams) -> None:
        """Begin a run; its results go to the sink."""
        sink = self._sink
        try:
            generation = Generation(sampling, partial(sink.delta, run_id))
        except ValueError as error:
            sink.failed(run_id, RequestRejected(str(error)))
            return
        with self._lock:
            self._generations[run_id] = generation
        self._runs.put(partial(self._run, run_id, prompt, sampling, generation))

    def _run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, generation: Generation
    ) -> None:
        end: Finish | EngineError
        try:
            found = self._backend.run(run_id, prompt, sampling, generation.on_piece)
            cut = generation.cancelled
            end = generation.finish(found)
        except EngineError as raised:
            cut, end = generation.cancelled, raised
        except Exception as raised:
            # A backend's bug costs this request only; the log keeps the traceback.
            logger.exception("the backend raised while running a request")
            failed = BackendFailed(f"the engine failed on this request: {raised}")
            cut, end = generation.cancelled, failed
        with self._lock:
            del self._generations[run_id]
        if cut:
            self._sink.aborted(run_id, end)
        elif isinstance(end, Finish):
            self._sink.finished(run_id, end)
        else:
            self._sink.failed(run_id, end)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can; an unknown or ended one is ignored."""
        with self._lock:
            generation = self._generations.get(run_id)
        if generation is not None:
            generation.cancel()
            self._backend.abort(run_id)

    def call(
        self,
        op: SideCall,
        payload: Any,
        done: Callable[[Any, EngineError | None], object],
    ) -> None:
        """Answer a side question on a thread."""

        def work() -> None:
            try:
                result: Any = getattr(self._backend, op)(payload)
            except EngineError as error:
                done(None, error)
            except Exception as error:
                logger.exception("the backend raised in %s", op)
                done(None, BackendFailed(f"the engine failed to {op}: {error}"))
            else:
                done(result, None)

        (self._embeds if op == "embed" else self._calls).put(work)

    def release_threads(self) -> None:
        """Let the threads go that are not stuck; the backend is left as it is."""
        for threads in (self._runs, self._calls, self._embeds):
            threads.end()

    def close(self) -> None:
        """Abort what runs, wait until it has returned, free the backend."""
        with self._lock:
            running = list(self._generations)
        for run_id in running:
            self.abort(run_id)
        self._runs.close()
        self._calls.close()
        self._embeds.close()
        self._backend.close()

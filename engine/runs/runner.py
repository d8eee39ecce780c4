"""Runs a backend's blocking calls on threads, in the host process or in the caller's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from common.worker_threads import WorkerThreads
from engine.backends.base import PREFILL_CALLS, Backend, SideCall
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, EngineError, RequestRejected, UnsupportedParameter
from engine.output import Delta, Finish
from engine.request import Prompt, SamplingParams
from engine.runs.generation import Generation

logger = logging.getLogger(__name__)

# Operations on the tokens of a model, and the parameter that each of them has.
_TOKEN_OPERATIONS: Mapping[SideCall, str] = {
    "tokenize": "prompt",
    "tokenize_text": "prompt",
    "detokenize": "tokens",
    "pieces": "prompt",
}


class Sink(Protocol):
    """Receives a runner's results, on the runner's threads."""

    def on_delta(self, run_id: int, delta: Delta) -> None:
        """Handle one token's text; may block while the parent does not read."""

    def on_finished(self, run_id: int, finish: Finish) -> None:
        """Handle the end of a run, whose thread is free again."""

    def on_aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """Handle the end of a run after an abort, with or without an error."""

    def on_failed(self, run_id: int, error: EngineError) -> None:
        """Handle the end of a run without an answer."""


class Runner:
    """Owns one backend and the threads that its runs and side calls block.

    The same class is used in the host process and, under thread isolation, in the caller's own.
    `start` is called only while a slot is free, so there are never more runs than threads. Side
    calls (`SideCall`) have their own thread, so that they do not wait behind a generation, and
    `PREFILL_CALLS` have others, because each takes as long as a prefill.
    """

    def __init__(self, backend: Backend, sink: Sink) -> None:
        self._backend = backend
        self._sink = sink
        self._lock = threading.Lock()
        self._generations: dict[int, Generation] = {}

    def load(self) -> Capabilities:
        """Load the backend on the calling thread. Raises ModelLoadFailed."""
        capabilities = self._backend.load()
        self._are_pieces_tokens = capabilities.token_pieces
        self._runs = WorkerThreads(capabilities.slots, "run")
        self._calls = WorkerThreads(1, "call")
        self._prefill_calls = WorkerThreads(capabilities.concurrent_calls, "prefill-call")
        return capabilities

    def try_run(self) -> None:
        """Run one short generation on the calling thread; only that it returns matters."""
        try:
            self._backend.run(0, "Hi", SamplingParams(max_tokens=1), lambda *_: True)
        except EngineError as error:
            logger.warning("a first run failed: %s", error)

    def start(self, run_id: int, prompt: Prompt, sampling: SamplingParams) -> None:
        """Start a run; its results go to the sink."""
        sink = self._sink
        try:
            generation = Generation(
                sampling, partial(sink.on_delta, run_id), are_pieces_tokens=self._are_pieces_tokens
            )
        except ValueError as error:
            sink.on_failed(run_id, RequestRejected(str(error)))
            return
        with self._lock:
            self._generations[run_id] = generation
        self._runs.put(partial(self._run, run_id, prompt, sampling, generation))

    def _run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, generation: Generation
    ) -> None:
        end: Finish | EngineError
        try:
            result = self._backend.run(run_id, prompt, sampling, generation.on_piece)
            is_cancelled = generation.is_cancelled
            end = generation.finish(result)
        except EngineError as error:
            is_cancelled, end = generation.is_cancelled, error
        except Exception as error:
            # A bug of the backend ends only this request; the log has the traceback.
            logger.exception("the backend raised while running a request")
            failure = BackendFailed(f"the engine failed on this request: {error}")
            is_cancelled, end = generation.is_cancelled, failure
        with self._lock:
            del self._generations[run_id]
        if is_cancelled:
            self._sink.on_aborted(run_id, end)
        elif isinstance(end, Finish):
            self._sink.on_finished(run_id, end)
        else:
            self._sink.on_failed(run_id, end)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can; unknown and ended runs are ignored."""
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
        """Make a side call on a thread, and pass its result or error to `done`."""

        def work() -> None:
            try:
                operation: Callable[[Any], Any] | None = self._backend.operations.get(op)
                if operation is None:
                    raise _missing_operation(op)
                result = operation(payload)
            except EngineError as error:
                done(None, error)
            except Exception as error:
                logger.exception("the backend raised in %s", op)
                done(None, BackendFailed(f"the engine failed to {op}: {error}"))
            else:
                done(result, None)

        (self._prefill_calls if op in PREFILL_CALLS else self._calls).put(work)

    def release_threads(self) -> None:
        """End the threads that are not stuck in the backend, which stays as it is."""
        for threads in (self._runs, self._calls, self._prefill_calls):
            threads.end()

    def close(self) -> None:
        """Abort all runs, wait until they have returned, and free the backend."""
        with self._lock:
            run_ids = list(self._generations)
        for run_id in run_ids:
            self.abort(run_id)
        self._runs.close()
        self._calls.close()
        self._prefill_calls.close()
        self._backend.close()


def _missing_operation(op: SideCall) -> UnsupportedParameter:
    """Return the error for an operation that the backend does not have."""
    if (param := _TOKEN_OPERATIONS.get(op)) is not None:
        return UnsupportedParameter(
            f"{param}: this engine does not have the tokens of its model", param=param
        )
    return UnsupportedParameter(f"this engine has no operation {op}", param=op)

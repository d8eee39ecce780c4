"""Several requests in one run of the runtime, which generates a token for each per step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.backends.base import OnPiece, RunResult
from engine.backends.rkllm.abi.structs import LLMCallState
from engine.backends.rkllm.runs.padding import PaddingCounter, padding_error
from engine.output import FinishReason
from engine.request import SamplingParams

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)


@dataclass(slots=True, eq=False)
class BatchedRequest:
    """A request that may share a run with requests of the same `batch_key`.

    `wakeup` is set when the request is aborted (by any thread) and when its answer has ended; the
    request's thread waits only for that event. The counters are written under the batch's lock.
    """

    prompt: list[int]
    sampling: SamplingParams
    context_length: int
    on_piece: OnPiece
    end_tokens: frozenset[int] = frozenset()
    wakeup: threading.Event = field(default_factory=threading.Event)
    batch_key: Hashable = None
    batch: Batch | None = None
    tokens: int = 0
    padding: PaddingCounter = field(default_factory=PaddingCounter)
    error: Exception | None = None
    # Whether it was the last active request; its thread then waits for the end of the run.
    is_last: bool = False
    # Whether the runtime ended its answer without any token: the run may have failed, which shows
    # at its end.
    is_empty: bool = False
    was_aborted: bool = False

    @property
    def limit(self) -> int:
        """The most tokens to generate; beyond the context the runtime would shift its window."""
        free_tokens = self.context_length - len(self.prompt)
        return min(self.sampling.max_tokens or free_tokens, free_tokens)

    def on_token(self, text: bytes | None, token_id: int, *, waiting: bool) -> bool:
        """Process this request's token of a callback; return whether the answer ends here."""
        if token_id < 0 or token_id in self.end_tokens:
            return True
        piece = text or b""
        if waiting and not _is_valid_utf8(piece):
            # The WAITING state covers all sequences. The bytes of this one come with a later token.
            piece = b""
        self.tokens += 1
        if self.padding.push(piece):
            self.error = padding_error()
            return True
        should_stop = self.on_piece(piece, token_id, None)
        return should_stop or self.tokens >= self.limit

    def result(self) -> RunResult:
        """Return the result from this request's counters; the runtime's cover the whole batch."""
        context_full = len(self.prompt) + self.tokens >= self.context_length
        batch = self.batch
        return RunResult(
            reason=FinishReason.LENGTH if context_full else FinishReason.STOP,
            prompt_tokens=len(self.prompt),
            completion_tokens=self.tokens,
            prefill_ms=0.0 if batch is None else batch.prefill_ms,
            reload_ms=0.0 if batch is None else batch.reload_ms,
        )


class Batch:
    """The requests of one run, one per sequence; the run has `n_batch` sequences.

    A request whose answer has ended or was aborted leaves the batch. Its sequence may continue, and
    its tokens are dropped. The thread of the last request waits until the run has returned, so that
    its timeouts detect a runtime that ignores the abort. The lock is held while a callback delivers
    tokens, so a request receives none after it has left. The callback's thread, the requests'
    threads and the scheduler's thread acquire it.
    """

    # As in `Run`: a batch generates tokens and has no hidden states or logits to copy.
    copy_output = None

    def __init__(self, requests: Sequence[BatchedRequest], n_batch: int) -> None:
        self.number = 0
        self.code = 0
        self.stopped = False
        self.finished = False
        self.failed = False
        # Returns whether the library has printed anything during the run so far.
        self.has_printed: Callable[[], bool] = lambda: False
        # The error that the library printed during the run, if any; set before `returned`.
        self.printed_error = ""
        self.reload_ms = 0.0
        self.prefill_ms = 0.0
        self.sampling = requests[0].sampling
        self.limit = max(request.limit for request in requests)
        self.returned = threading.Event()
        self._requests = tuple(requests)
        self._n_batch = n_batch
        self._started_at: float | None = None
        self._lock = threading.Lock()
        self._active = dict(enumerate(requests))
        for request in requests:
            request.batch = self

    @property
    def tokens(self) -> int:
        """The number of tokens of its longest answer."""
        return max(request.tokens for request in self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def start(self) -> list[list[int]]:
        """Return the prompts in order; only the first token of requests that have left.

        Called after the run was registered, just before the library is called.
        """
        with self._lock:
            self._started_at = time.monotonic()
            return [
                request.prompt if index in self._active else request.prompt[:1]
                for index, request in enumerate(self._requests)
            ]

    def on_result(self, result: Any, state: int) -> bool:
        """Process a callback's array of results; return whether to abort the run."""
        if state == _FINISH:
            self.finished = True
        elif state not in (_NORMAL, _WAITING):
            self.failed = True
        elif not self.stopped and result:
            with self._lock:
                return self._deliver_tokens(result, waiting=state == _WAITING)
        return False

    def _deliver_tokens(self, result: Any, *, waiting: bool) -> bool:
        if self._started_at is not None:
            self.prefill_ms = (time.monotonic() - self._started_at) * 1000
            self._started_at = None
        for index, request in tuple(self._active.items()):
            output = result[index]
            if request.on_token(output.text, output.token_id, waiting=waiting):
                request.is_empty = not request.tokens
                self._end_request(index)
        # Abort if no request is left but sequences continue; if all have ended, the run ends too.
        return not self._active and any(
            result[index].token_id >= 0 for index in range(self._n_batch)
        )

    def _end_request(self, index: int) -> None:
        request = self._active.pop(index)
        request.is_last = not self._active
        request.wakeup.set()

    def leave(self, request: BatchedRequest) -> bool:
        """Remove a request; return whether its thread must wait for the end of the run."""
        with self._lock:
            for index, active in tuple(self._active.items()):
                if active is request:
                    request.was_aborted = True
                    self._end_request(index)
                    self.stopped = request.is_last
        return request.is_last

    def finish(self, error: Exception | None) -> None:
        """End the remaining requests after the run has returned, with `error` if it failed."""
        with self._lock:
            remaining = tuple(self._active.values())
            self._active.clear()
        self.returned.set()
        for request in remaining:
            request.error = error
            request.wakeup.set()


def _is_valid_utf8(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True

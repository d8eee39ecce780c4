"""The stream of one running generation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

from engine.errors import (
    ConsumerTooSlow,
    EngineError,
    EngineStalled,
    GenerationCancelled,
    GenerationTimeout,
)
from engine.hooks import FirstToken, Hooks, RequestEnded
from engine.output import Delta, Finish, Timings
from engine.request import GenerationRequest
from engine.runs.abortable import Abortable
from engine.runs.channel import DeltaChannel
from engine.timeouts import Timeouts

# The most undelivered text of one stream: with more, the reader counts as gone.
MAX_PENDING_CHARS = 8_000_000


class RunControl(Protocol):
    """The methods of a host that a stream uses to control its run."""

    def abort(self, run_id: int) -> None:
        """Stop the run as soon as the backend can."""

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """End the host, because the run did not stop in time after an abort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The facts about a run at its start; times in seconds, `deadline` by the loop's clock.

    `queued_s` and `load_s` are how long the request waited for a slot and for the model.
    `starts_in_reasoning` means that the prompt ends with an open reasoning mark. `buffered` means
    that no client reads before the end, so the deltas may come in few batches. `abort_in_prefill`
    means that the backend can stop the run before its first token.
    """

    run_id: int
    request: GenerationRequest
    deadline: float
    queued_s: float = 0.0
    load_s: float = 0.0
    warnings: tuple[str, ...] = ()
    starts_in_reasoning: bool = False
    abort_in_prefill: bool = True
    buffered: bool = False


class TokenStream(Abortable):
    """Yields batches of deltas as they arrive, and then has a `result`.

    Leaving the `async with` block or calling `abort` stops the run at once, even while the consumer
    waits, and drops everything that arrives later. The slot is released when the host reports that
    the run has returned, not before. The iterator yields lists of at least one `Delta` with text or
    log-probability; a failure is raised after the deltas that came before it.

    Owned by the event loop. Only `feed` may be called from another thread: under thread isolation
    the run's thread calls it, under process isolation the loop itself.
    """

    def __init__(
        self,
        run: RunStart,
        control: RunControl,
        timeouts: Timeouts,
        hooks: Hooks,
        *,
        threaded: bool,
        on_end: Callable[[TokenStream], None],
    ) -> None:
        self.run_id = run.run_id
        self.request = run.request
        self.warnings = run.warnings
        self.starts_in_reasoning = run.starts_in_reasoning
        self.buffered = run.buffered
        self.result: Finish | None = None
        self.error: EngineError | None = None
        self._control = control
        self._timeouts = timeouts
        self._abort_in_prefill = run.abort_in_prefill
        self._queued_s = run.queued_s
        self._load_s = run.load_s
        self._on_end = on_end
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        # A new future for each wait: an Event does the same in more steps, for each token.
        self._waiter: asyncio.Future[None] | None = None
        self._threaded = threaded
        wake: Callable[[], object] = self._wake
        if threaded:
            wake = partial(self._loop.call_soon_threadsafe, self._wake)
        self._channel: DeltaChannel[Delta] = DeltaChannel(wake)
        self._started_at = self._loop.time()
        self._first_token_at: float | None = None
        self._is_first_token_reported = False
        self._last_token_at = self._started_at
        self._tokens = 0
        self._aborted_at: float | None = None
        self._has_ended = False
        # For the callers of `wait_ended`.
        self._end_waiter: asyncio.Future[None] | None = None
        self._pending_chars = 0
        self._delivered_chars = 0
        self._is_too_slow = False
        self._deadline = run.deadline
        # The earliest time at which any limit can expire; tokens do not restart the timer.
        self._prefill_limit_s = timeouts.prefill_limit_s(run.request.prompt)
        silence_s = min(self._prefill_limit_s, timeouts.stall_timeout_s)
        self._timer = self._loop.call_at(
            min(self._started_at + silence_s, run.deadline), self._check_timeouts
        )

    # -- the host's side ------------------------------------------------------------------------

    def feed(self, deltas: Sequence[Delta]) -> None:
        """Add deltas from the host, in order; never waits, never raises."""
        now = self._last_token_at = self._loop.time()
        self._tokens += len(deltas)
        if self._first_token_at is None:
            self._first_token_at = now
            if self._threaded:
                self._loop.call_soon_threadsafe(self._report_first_token)
            elif not self.buffered:
                # The first delta of a buffered run arrives late; its finish has the actual time.
                self._report_first_token()
        if self._aborted_at is not None or self._is_too_slow:
            return
        for delta in deltas:
            self._pending_chars += len(delta.text)
        if self._pending_chars - self._delivered_chars > MAX_PENDING_CHARS:
            self._is_too_slow = True
            self._loop.call_soon_threadsafe(self._abort_slow_consumer)
            return
        self._channel.extend(deltas)

    def end(self, finish: Finish | None, error: EngineError | None) -> None:
        """End the stream: the run has returned (`finish`), or failed or was lost (`error`).

        Called on the event loop; only the first call counts.
        """
        if self._has_ended:
            return
        if self._is_too_slow:
            # The run ended before the loop could abort it for too much text: text is missing.
            self._abort_slow_consumer()
        self._has_ended = True
        if self._end_waiter is not None:
            self._end_waiter.set_result(None)
        self._timer.cancel()
        # Break the reference cycle, which would otherwise stay until the garbage collector runs.
        self._channel.detach()
        if self._aborted_at is None:
            self.error = error
            if finish is not None:
                self._set_result(finish)
        self._report_first_token()
        first = self._first_token_at
        # The end of an aborted run overtakes its deltas, so `self._tokens` may be too low.
        tokens = self._tokens if finish is None else finish.usage.completion_tokens
        self._hooks(
            RequestEnded(
                self.request.request_id,
                self.result,
                self.error,
                self._aborted_at is not None,
                self._loop.time() - self._started_at,
                self.request.priority,
                tokens,
                0.0 if first is None else self._last_token_at - first,
            )
        )
        self._wake()
        self._on_end(self)

    def _set_result(self, finish: Finish) -> None:
        if self.buffered and self._first_token_at is not None:
            host_time = self._started_at + finish.timings.first_token_ms / 1000
            self._first_token_at = min(self._first_token_at, host_time)
        self.result = finish._replace(timings=self._timings(finish))

    def _report_first_token(self) -> None:
        if self._first_token_at is not None and not self._is_first_token_reported:
            self._is_first_token_reported = True
            after_s = self._first_token_at - self._started_at
            self._hooks(FirstToken(self.request.request_id, after_s))

    def _wake(self) -> None:
        """Wake the consumer if it waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def is_aborted(self) -> bool:
        """Whether the run was aborted, by its client or by a timeout."""
        return self._aborted_at is not None

    @property
    def last_token_s(self) -> float | None:
        """When the last token arrived, on the loop's clock; None before the first."""
        return None if self._first_token_at is None else self._last_token_at

    # -- the consumer's side --------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        """Return the new deltas, waiting for at least one with text or log-probability."""
        while True:
            ended = self._has_ended or self._aborted_at is not None
            batch = []
            for delta in self._channel.drain():
                text, logprob = delta
                if text or logprob:
                    batch.append(delta)
                    self._delivered_chars += len(text)
            if batch and self._aborted_at is None:
                return batch
            if ended:
                if self.error is not None:
                    # A copy: the traceback of the original would keep this stream's reader alive.
                    raise copy(self.error)
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter

    def abort(self, error: EngineError | None = None) -> None:
        """Stop the run; a waiting consumer gets `error`. Does nothing after the end.

        It is synchronous, so that it also works in a `finally`, in a cancelled task and in the
        callback of a signal handler.
        """
        if self._has_ended or self._aborted_at is not None:
            return
        self._aborted_at = self._loop.time()
        self.error = error or GenerationCancelled("the request was cancelled")
        self._wake()
        self._control.abort(self.run_id)
        if not self._has_ended:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._next_expiry(), self._check_timeouts)

    async def wait_ended(self) -> None:
        """Wait until the run has returned and its slot is free; the timeouts limit the wait."""
        if not self._has_ended:
            self._end_waiter = self._end_waiter or self._loop.create_future()
            # Shielded, because other callers may wait for the same future.
            await asyncio.shield(self._end_waiter)

    # -- the timeouts ---------------------------------------------------------------------------

    def _next_expiry(self) -> float:
        """Return when the next timeout expires, provided that no token comes before."""
        timeouts = self._timeouts
        if self._aborted_at is not None:
            since = self._aborted_at
            if self._first_token_at is None and not self._abort_in_prefill:
                # A prefill that cannot be interrupted gets its full time before the run counts as
                # stuck.
                since = max(since, self._started_at + self._prefill_limit_s)
            return since + timeouts.abort_grace_s
        if self._first_token_at is None:
            return min(self._deadline, self._started_at + self._prefill_limit_s)
        return min(self._deadline, self._last_token_at + timeouts.stall_timeout_s)

    def _check_timeouts(self) -> None:
        """Abort the run, or report it as stuck, if a timeout has expired; else wait again."""
        expiry = self._next_expiry()
        if self._loop.time() < expiry:
            self._timer = self._loop.call_at(expiry, self._check_timeouts)
        elif self._aborted_at is None:
            self.abort(self._expiry_error(expiry))
        else:
            grace_s = self._timeouts.abort_grace_s
            error = EngineStalled(f"the engine did not stop within {grace_s:g} s of an abort")
            self._control.kill_stuck_run(self.run_id, error)

    def _expiry_error(self, expiry: float) -> EngineError:
        timeouts = self._timeouts
        if expiry == self._deadline:
            return timeout_error(self.request, timeouts)
        if self._first_token_at is None:
            return EngineStalled(
                f"no first token came within {self._prefill_limit_s:.3g} s (PREFILL_TIMEOUT_S)"
            )
        return EngineStalled(f"no token came for {timeouts.stall_timeout_s:g} s (STALL_TIMEOUT_S)")

    def _abort_slow_consumer(self) -> None:
        self.abort(
            ConsumerTooSlow(
                f"more than {MAX_PENDING_CHARS} characters waited to be read, so the request ended"
            )
        )

    def _timings(self, finish: Finish) -> Timings:
        end = self._loop.time()
        first = end if self._first_token_at is None else self._first_token_at
        generate_s = max(end - first, 0.0)
        # The first token belongs to prefill, so the rate is over the other tokens.
        decoded_tokens = finish.usage.completion_tokens - 1
        has_rate = generate_s > 0 and decoded_tokens > 0
        return Timings(
            queue_ms=1000 * self._queued_s,
            load_ms=1000 * self._load_s,
            reload_ms=finish.timings.reload_ms,
            prefill_ms=finish.timings.prefill_ms,
            first_token_ms=1000 * (first - self._started_at),
            generate_ms=1000 * generate_s,
            total_ms=1000 * (self._queued_s + self._load_s + end - self._started_at),
            tokens_per_second=decoded_tokens / generate_s if has_rate else 0.0,
            reused_tokens=finish.usage.cached_tokens,
            prefilled_tokens=finish.usage.prompt_tokens - finish.usage.cached_tokens,
        )


def timeout_error(request: GenerationRequest, timeouts: Timeouts) -> GenerationTimeout:
    """Return the error of a request that has reached its own limit, queueing included."""
    limit_s = timeouts.request_timeout_s if request.timeout_s is None else request.timeout_s
    return GenerationTimeout(f"the request took longer than {limit_s:g} s (REQUEST_TIMEOUT_S)")

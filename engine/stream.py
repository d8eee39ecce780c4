"""One running generation, as its consumer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Protocol, Self

from engine.abortable import Abortable
from engine.channel import DeltaChannel
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
from engine.timeouts import Timeouts

# One stream's undelivered text, in characters: past it the reader has stopped reading.
MAX_PENDING_CHARS = 8_000_000


class RunControl(Protocol):
    """What a stream may ask of the host its run is on."""

    def abort(self, run_id: int) -> None:
        """Stop the run as soon as the backend can."""

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """The run did not end in time after an abort: the host must go."""


class TokenStream(Abortable):
    """Yields batches of deltas as they come, then has `result`; it owns the abort of its run.

    Leaving the `async with` block or calling `abort` stops the run at once, whatever the consumer
    was waiting for, and nothing that arrives later can be seen. The slot is given back when the
    host says that the run has returned, not before. Whoever iterates gets lists of at least one
    `Delta` with text; a failure is raised after the deltas that came before it.

    Owned by the event loop, clocks included. Only `feed` is called from elsewhere: by the one
    producing thread under thread isolation, by the loop itself under process isolation.
    """

    def __init__(
        self,
        run_id: int,
        request: GenerationRequest,
        control: RunControl,
        timeouts: Timeouts,
        *,
        abort_in_prefill: bool,
        threaded: bool,
        queued_s: float,
        load_s: float = 0.0,
        deadline: float,
        warnings: tuple[str, ...],
        on_end: Callable[[TokenStream], None],
        hooks: Hooks,
        buffered: bool = False,
    ) -> None:
        self.run_id = run_id
        self.request = request
        self.warnings = warnings
        # Nobody reads along: its deltas may come together, in a few parts.
        self.buffered = buffered
        self.result: Finish | None = None
        self.error: EngineError | None = None
        self._control = control
        self._timeouts = timeouts
        self._abort_in_prefill = abort_in_prefill
        self._queued_s = queued_s
        self._load_s = load_s
        self._on_end = on_end
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        # Made anew for each wait: an Event does the same with more steps, each of them per token.
        self._waiter: asyncio.Future[None] | None = None
        self._threaded = threaded
        wake: Callable[[], object] = self._wake
        if threaded:
            wake = partial(self._loop.call_soon_threadsafe, self._wake)
        self._channel: DeltaChannel[Delta] = DeltaChannel(wake)
        self._started = self._loop.time()
        self._first_token: float | None = None
        self._first_told = False
        self._last_token = self._started
        self._tokens = 0
        self._aborted: float | None = None
        self._over = False
        # Of whoever waits for that.
        self._parted: asyncio.Future[None] | None = None
        self._pending_chars = 0
        self._delivered_chars = 0
        self._too_slow = False
        self._deadline = deadline
        # No later than a token that comes at once could be missed: later ones re-arm no timer.
        silence_s = min(timeouts.prefill_timeout_s, timeouts.stall_timeout_s)
        self._timer = self._loop.call_at(min(self._started + silence_s, deadline), self._tick)

    # -- the host's side ------------------------------------------------------------------------

    def feed(self, deltas: Sequence[Delta]) -> None:
        """Take deltas from the host, in order; never waits, never raises."""
        now = self._last_token = self._loop.time()
        self._tokens += len(deltas)
        if self._first_token is None:
            self._first_token = now
            if self._threaded:
                self._loop.call_soon_threadsafe(self._tell_first_token)
            elif not self.buffered:
                # What comes together here did not there, and the end says when it was.
                self._tell_first_token()
        if self._aborted is not None or self._too_slow:
            return
        for delta in deltas:
            self._pending_chars += len(delta.text)
        if self._pending_chars - self._delivered_chars > MAX_PENDING_CHARS:
            self._too_slow = True
            self._loop.call_soon_threadsafe(self._abort_too_slow)
            return
        self._channel.extend(deltas)

    def end(self, finish: Finish | None, error: EngineError | None) -> None:
        """The run has returned (`finish`), failed or was lost (`error`); loop side, once."""
        if self._over:
            return
        if self._too_slow:
            # The run may end in the very turn in which it said too much: text is missing.
            self._abort_too_slow()
        self._over = True
        if self._parted is not None:
            self._parted.set_result(None)
        self._timer.cancel()
        # It refers back to here, and what goes in a circle stays until the collector comes by.
        self._channel.detach()
        if self._aborted is None:
            self.error = error
            if finish is not None:
                self._end_with(finish)
        self._tell_first_token()
        first = self._first_token
        # An aborted run's end does not wait for what the run had said by then.
        tokens = self._tokens if finish is None else finish.usage.completion_tokens
        self._hooks(
            RequestEnded(
                self.request.request_id,
                self.result,
                self.error,
                self._aborted is not None,
                self._loop.time() - self._started,
                self.request.priority,
                tokens,
                0.0 if first is None else self._last_token - first,
            )
        )
        self._wake()
        self._on_end(self)

    def _end_with(self, finish: Finish) -> None:
        if self.buffered and self._first_token is not None:
            there = self._started + finish.timings.first_token_ms / 1000
            self._first_token = min(self._first_token, there)
        timings = self._timings(finish)
        self.result = Finish(finish.reason, finish.usage, finish.stop_reason, timings)

    def _tell_first_token(self) -> None:
        if self._first_token is not None and not self._first_told:
            self._first_told = True
            after_s = self._first_token - self._started
            self._hooks(FirstToken(self.request.request_id, after_s))

    def _wake(self) -> None:
        """Have the consumer look again, if it waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def aborted(self) -> bool:
        """Whether the run was told to stop, by its client or by a clock."""
        return self._aborted is not None

    @property
    def last_token_s(self) -> float | None:
        """When the last token came, on the loop's clock; None before the first."""
        return None if self._first_token is None else self._last_token

    # -- the consumer's side --------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        """Return what has come since the last call, waiting for at least one delta with text."""
        while True:
            ended = self._over or self._aborted is not None
            batch = []
            for delta in self._channel.drain():
                text, logprob = delta
                if text or logprob:
                    batch.append(delta)
                    self._delivered_chars += len(text)
            if batch and self._aborted is None:
                return batch
            if ended:
                if self.error is not None:
                    # The one that is kept would keep, by its traceback, whoever reads this stream.
                    raise copy(self.error)
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter

    def abort(self, error: EngineError | None = None) -> None:
        """Stop the run; the consumer, if it still listens, gets `error`. Harmless once it is over.

        Synchronous, so that it works in a `finally`, in a cancelled task and in a signal handler's
        callback alike.
        """
        if self._over or self._aborted is not None:
            return
        self._aborted = self._loop.time()
        self.error = error or GenerationCancelled("the request was cancelled")
        self._wake()
        self._control.abort(self.run_id)
        if not self._over:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._due(), self._tick)

    async def wait_ended(self) -> None:
        """Wait until the run has returned and its slot is free; bounded by the clocks."""
        if not self._over:
            self._parted = self._parted or self._loop.create_future()
            # Whoever gives up waiting is not the only one.
            await asyncio.shield(self._parted)

    # -- the clocks -----------------------------------------------------------------------------

    def _due(self) -> float:
        """Return when a clock will have run out, as far as is known by now."""
        timeouts = self._timeouts
        if self._aborted is not None:
            since = self._aborted
            if self._first_token is None and not self._abort_in_prefill:
                # A prefill that cannot be interrupted gets its own time before it counts as deaf.
                since = max(since, self._started + timeouts.prefill_timeout_s)
            return since + timeouts.abort_grace_s
        if self._first_token is None:
            return min(self._deadline, self._started + timeouts.prefill_timeout_s)
        return min(self._deadline, self._last_token + timeouts.stall_timeout_s)

    def _tick(self) -> None:
        """Look whether a clock has run out; tokens only put it off."""
        due = self._due()
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._tick)
        elif self._aborted is None:
            self.abort(self._overdue(due))
        else:
            grace_s = self._timeouts.abort_grace_s
            error = EngineStalled(f"the engine did not stop within {grace_s:g} s of an abort")
            self._control.kill_stuck_run(self.run_id, error)

    def _overdue(self, due: float) -> EngineError:
        timeouts = self._timeouts
        if due == self._deadline:
            return timeout_error(self.request, timeouts)
        if self._first_token is None:
            return EngineStalled(
                f"no first token came within {timeouts.prefill_timeout_s:g} s (PREFILL_TIMEOUT_S)"
            )
        return EngineStalled(f"no token came for {timeouts.stall_timeout_s:g} s (STALL_TIMEOUT_S)")

    def _abort_too_slow(self) -> None:
        self.abort(
            ConsumerTooSlow(
                f"more than {MAX_PENDING_CHARS} characters waited to be read, so the request ended"
            )
        )

    def _timings(self, finish: Finish) -> Timings:
        end = self._loop.time()
        first = end if self._first_token is None else self._first_token
        generate_s = max(end - first, 0.0)
        # The first token is paid for by prefill, so the rate is over the others.
        others = finish.usage.completion_tokens - 1
        return Timings(
            queue_ms=1000 * self._queued_s,
            load_ms=1000 * self._load_s,
            reload_ms=finish.timings.reload_ms,
            prefill_ms=finish.timings.prefill_ms,
            first_token_ms=1000 * (first - self._started),
            generate_ms=1000 * generate_s,
            total_ms=1000 * (self._queued_s + self._load_s + end - self._started),
            tokens_per_second=others / generate_s if generate_s > 0 < others else 0.0,
            reused_tokens=finish.usage.cached_tokens,
            prefilled_tokens=finish.usage.prompt_tokens - finish.usage.cached_tokens,
        )


def timeout_error(request: GenerationRequest, timeouts: Timeouts) -> GenerationTimeout:
    """The error of a request whose own time is up, waiting in the queue included."""
    limit_s = timeouts.request_timeout_s if request.timeout_s is None else request.timeout_s
    return GenerationTimeout(f"the request took longer than {limit_s:g} s (REQUEST_TIMEOUT_S)")

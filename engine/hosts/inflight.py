"""The runs and side calls that are in flight on the engine's process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from engine.backends.base import PREFILL_CALLS, SideCall
from engine.errors import EngineError, EngineStalled, RequestRejected, from_wire
from engine.output import Delta, Finish, TokenLogprob, new_delta
from engine.request import GenerationRequest
from engine.runs.stream import TokenStream


class InflightRequests:
    """Sends runs and side calls to the child, and passes its output to the streams and callers.

    Each run and call ends exactly once: when the child reports its end, or in `fail_all` when the
    child is lost. Owned by the event loop.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], on_unresponsive: Callable[[EngineError], None]
    ) -> None:
        self._send = send
        self._on_unresponsive = on_unresponsive
        self._streams: dict[int, TokenStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        # The operation and the payload of each call.
        self._arguments: dict[int, tuple[str, Any]] = {}
        self._call_ids = itertools.count(1)
        # When a run last finished without an abort, on the loop's clock.
        self._last_finish_s = 0.0

    def __contains__(self, run_id: int) -> bool:
        """Whether a run has not ended."""
        return run_id in self._streams

    def __len__(self) -> int:
        """Return how many runs have not ended."""
        return len(self._streams)

    @property
    def running(self) -> list[GenerationRequest | tuple[str, Any]]:
        """The requests of the runs, and the side calls, that have not ended."""
        return [*(stream.request for stream in self._streams.values()), *self._arguments.values()]

    @property
    def aborted_runs(self) -> list[TokenStream]:
        """The runs that were aborted and have not ended."""
        return [stream for stream in self._streams.values() if stream.is_aborted]

    @property
    def has_healthy(self) -> bool:
        """Whether a run that was not aborted, or a side call, has not ended."""
        return bool(self._calls) or not all(each.is_aborted for each in self._streams.values())

    def start_run(self, stream: TokenStream) -> None:
        """Send the stream's run to the child."""
        self._streams[stream.run_id] = stream
        try:
            self._send(
                {
                    "run": stream.run_id,
                    "prompt": stream.request.prompt,
                    "sampling": stream.request.sampling.to_wire(),
                    "buffered": stream.buffered,
                }
            )
        except TypeError as error:
            del self._streams[stream.run_id]
            stream.end(None, _not_sendable(error))

    async def call(self, op: SideCall, payload: Any, timeout_s: float) -> Any:
        """Make one of the backend's side calls; `on_unresponsive` is called if there is no answer.

        A call that takes a prefill waits for the run before it, so its timeout restarts whenever a
        run makes progress.

        Raises EngineError.
        """
        loop, is_prefill = asyncio.get_running_loop(), op in PREFILL_CALLS
        call_id, start_s = next(self._call_ids), loop.time()
        future = self._calls[call_id] = loop.create_future()
        self._arguments[call_id] = op, payload
        try:
            self._send({"call": call_id, "op": op, "payload": payload})
            while not future.done():
                since_s = max(start_s, self._last_progress_s()) if is_prefill else start_s
                left_s = since_s + timeout_s - loop.time()
                if left_s <= 0:
                    error = EngineStalled(
                        f"the engine did not {op} within {timeout_s:g} s (PREFILL_TIMEOUT_S)"
                    )
                    del self._calls[call_id]
                    self._on_unresponsive(error)
                    raise error
                await asyncio.wait({future}, timeout=left_s)
            return future.result()
        except TypeError as error:
            raise _not_sendable(error) from error
        finally:
            self._calls.pop(call_id, None)
            self._arguments.pop(call_id, None)

    def _last_progress_s(self) -> float:
        """Return when a run last produced a token or finished."""
        last_tokens = [each.last_token_s for each in self._streams.values()]
        return max([self._last_finish_s, *[each for each in last_tokens if each is not None]])

    def handle_frame(self, frame: dict[str, Any]) -> None:
        """Pass the deltas and ends in a frame of the child to their streams."""
        streams = self._streams
        for run_id, texts, logprobs in frame.get("deltas", ()):
            if (stream := streams.get(run_id)) is not None:
                stream.feed(
                    [new_delta((text, None)) for text in texts]
                    if logprobs is None
                    else _build_deltas(texts, logprobs)
                )
        for run_id, wire in frame.get("finished", ()):
            if (stream := streams.pop(run_id, None)) is not None:
                stream.end(Finish.from_wire(wire), None)
                if stream.result is not None:
                    self._last_finish_s = asyncio.get_running_loop().time()
        for run_id, wire in frame.get("failed", ()):
            if (stream := streams.pop(run_id, None)) is not None:
                stream.end(None, from_wire(wire))

    def resolve_call(self, call_id: int, result: Any, error: EngineError | None) -> None:
        """Set the result of a side call; does nothing if its caller has given up."""
        future = self._calls.get(call_id)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def fail_all(self, error: EngineError) -> None:
        """End all runs and calls with this error, because the child is gone."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(None, error)
        for call_id in list(self._calls):
            self.resolve_call(call_id, None, error)


def _build_deltas(texts: list[str], logprobs: list[list[Any]]) -> list[Delta]:
    logprob_by_index: dict[int, TokenLogprob] = {
        index: TokenLogprob(
            token,
            logprob,
            tuple((name, value) for name, value in top),
            raw.encode("latin-1"),
            offset,
        )
        for index, token, logprob, top, raw, offset in logprobs
    }
    return [Delta(text, logprob_by_index.get(index)) for index, text in enumerate(texts)]


def _not_sendable(error: TypeError) -> RequestRejected:
    # The value is half a surrogate pair or a number beyond 64 bits, which the encoder refuses.
    return RequestRejected(f"the request holds a value that cannot be passed on: {error}")

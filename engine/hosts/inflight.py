"""What is under way on the engine's process: runs and side calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from engine.backends.base import SideCall
from engine.errors import EngineError, EngineStalled, RequestRejected, from_wire
from engine.output import Delta, Finish, TokenLogprob, new_delta
from engine.stream import TokenStream


class InflightRequests:
    """Asks the child for runs and side calls, and hands what it says to whoever waits for it.

    Each of them ends here once: by what the child says, or all together when it is lost. Owned by
    the event loop.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], on_deaf: Callable[[EngineError], None]
    ) -> None:
        self._send = send
        self._on_deaf = on_deaf
        self._streams: dict[int, TokenStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        # When a run last ended by itself, on the loop's clock.
        self._ended_s = 0.0

    def __contains__(self, run_id: int) -> bool:
        """Whether a run has not ended."""
        return run_id in self._streams

    def __len__(self) -> int:
        """Return how many runs have not ended."""
        return len(self._streams)

    @property
    def aborted(self) -> list[TokenStream]:
        """The runs that were aborted and have not ended."""
        return [stream for stream in self._streams.values() if stream.aborted]

    @property
    def has_healthy(self) -> bool:
        """Whether a run that was not aborted, or a side call, has not ended."""
        return bool(self._calls) or not all(each.aborted for each in self._streams.values())

    def start_run(self, stream: TokenStream) -> None:
        """Ask for the stream's run."""
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

    async def call(self, op: SideCall, payload: Any, within_s: float) -> Any:
        """Ask one of the backend's side calls; a child that does not answer is deaf.

        A vector has to wait for the run before it, so its time begins anew with whatever a run
        says.

        Raises EngineError.
        """
        loop = asyncio.get_running_loop()
        call_id, asked_s = next(self._call_ids), loop.time()
        future = self._calls[call_id] = loop.create_future()
        try:
            self._send({"call": call_id, "op": op, "payload": payload})
            while not future.done():
                since_s = max(asked_s, self._heard_s()) if op == "embed" else asked_s
                left_s = since_s + within_s - loop.time()
                if left_s <= 0:
                    error = EngineStalled(
                        f"the engine did not {op} within {within_s:g} s (PREFILL_TIMEOUT_S)"
                    )
                    del self._calls[call_id]
                    self._on_deaf(error)
                    raise error
                await asyncio.wait({future}, timeout=left_s)
            return future.result()
        except TypeError as error:
            raise _not_sendable(error) from error
        finally:
            self._calls.pop(call_id, None)

    def _heard_s(self) -> float:
        """When a run last said something, or came to its end."""
        said = [at for each in self._streams.values() if (at := each.last_token_s) is not None]
        return max([self._ended_s, *said])

    def handle_frame(self, frame: dict[str, Any]) -> None:
        """Take what the child says of its runs."""
        streams = self._streams
        for run_id, texts, logprobs in frame.get("deltas", ()):
            if (stream := streams.get(run_id)) is not None:
                stream.feed(
                    [new_delta((text, None)) for text in texts]
                    if logprobs is None
                    else _join(texts, logprobs)
                )
        for run_id, wire in frame.get("finished", ()):
            if (stream := streams.pop(run_id, None)) is not None:
                stream.end(Finish.from_wire(wire), None)
                if stream.result is not None:
                    self._ended_s = asyncio.get_running_loop().time()
        for run_id, wire in frame.get("failed", ()):
            if (stream := streams.pop(run_id, None)) is not None:
                stream.end(None, from_wire(wire))

    def resolve_call(self, call_id: int, result: Any, error: EngineError | None) -> None:
        """Take the child's answer to a side call, which may have been given up."""
        future = self._calls.get(call_id)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def fail_all(self, error: EngineError) -> None:
        """End all of them with this error: the child is no more."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(None, error)
        for call_id in list(self._calls):
            self.resolve_call(call_id, None, error)


def _join(texts: list[str], logprobs: list[list[Any]]) -> list[Delta]:
    found: dict[int, TokenLogprob] = {
        index: TokenLogprob(
            token,
            logprob,
            tuple((name, value) for name, value in top),
            raw.encode("latin-1"),
            offset,
        )
        for index, token, logprob, top, raw, offset in logprobs
    }
    return [Delta(text, found.get(index)) for index, text in enumerate(texts)]


def _not_sendable(error: TypeError) -> RequestRejected:
    # Half a surrogate pair, a number beyond 64 bits: what JSON cannot carry to the child.
    return RequestRejected(f"the request holds a value that cannot be passed on: {error}")

"""Parse and answer the calls of any API, for HTTP routes, the queue, jobs and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from common.json_object import JsonObject
from engine import Priority, Slot
from engine.runs.abortable import Abortable
from handler.apis.core.wire_format import NOTHING_SENT, SentBlocks, WireFormat
from handler.delivery.limits import PARTIAL_CHARS
from handler.errors import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The context of a call, apart from its route and its body.

    `slot` is a reserved slot, which its owner releases. `timeout_s` limits each generation; None
    for the engine's own limit. `job_id` is set if the call is a job.
    `warnings` become part of the answer. `interval_s` is the minimum time between two blocks of a
    stream, and `part_chars` the maximum text of an event.
    """

    slot: Slot | None = None
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None
    job_id: str | None = None
    warnings: tuple[str, ...] = ()
    interval_s: float = 0.0
    part_chars: int = PARTIAL_CHARS


class ApiCall(ABC):
    """A parsed call of an API, which is answered once: whole, or as a stream.

    Owned by the task that answers it, which aborts a stream that it has opened in any case.
    """

    def __init__(self, wire_format: WireFormat, context: CallContext, *, streaming: bool) -> None:
        self.format = wire_format
        self.streaming = streaming
        self._context = context
        self._opened: Abortable | None = None

    @abstractmethod
    async def complete(self) -> JsonObject:
        """Run the call and return the body of its answer. Raises EngineError."""

    async def open(self) -> None:
        """Start a stream and wait for its first text; only for a call with `streaming`.

        Raises EngineError.
        """
        self._opened = await self._open()

    def stream(self) -> AsyncGenerator[bytes | JsonObject, None]:
        """Yield the open stream as blocks of complete events that each fit a job's chunk.

        An error after the first text is written as the last event. A call that is run for a job
        may yield the job's output last. Some calls, such as embeddings, are never streamed: they
        have no stream, and asking for one is a fault of the caller.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stream")

    def abort(self) -> None:
        """Stop what was opened, if it is still running."""
        if self._opened is not None:
            self._opened.abort()

    def encode_stream_error(self, failure: ErrorInfo, sent: SentBlocks = NOTHING_SENT) -> bytes:
        """Return the events that end a stream which has failed, after the blocks that were sent."""
        return self.format.encode_stream_error(failure, sent)

    async def _open(self) -> Abortable:
        raise NotImplementedError(f"{type(self).__name__} has no stream")


class Api(ABC):
    """One API, with its routes; has no state between calls."""

    format: WireFormat
    routes: tuple[str, ...]

    @abstractmethod
    def check(self, route: str, body: JsonObject) -> None:
        """Check a call without running it. Raises InvalidRequest or NotFound."""

    @abstractmethod
    async def parse(self, route: str, body: JsonObject, context: CallContext) -> ApiCall:
        """Parse a body of one of the routes.

        Raises:
            InvalidRequest: naming the client's field that is wrong.
            NotFound: there is no such model.
        """

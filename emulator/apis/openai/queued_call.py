"""A call that runs as a job: wait for its result, or stream its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import orjson

from common.json_object import JsonObject
from emulator.apis.openai.worker_output import SSEReassembler, describe_job_failure, read_body
from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR, ShutdownState
from handler.apis.core.api import ApiCall, CallContext
from handler.apis.core.wire_format import SentBlocks, WireFormat
from handler.errors import CallFailed, ErrorInfo, ErrorMapping, error_info
from jobs import Chunk, Job, JobStatus, JobStore

T = TypeVar("T")

# The store does not wake readers when a worker is lost, so the job is read at this interval.
_POLL_INTERVAL_S = 0.5
_TIMEOUT = ErrorMapping(504, "timeout_error", retryable=True)
_LOST = ErrorMapping(502, "worker_error", retryable=True)


class QueuedCall(ApiCall):
    """A call whose job belongs to its client alone, so the job is cancelled if the client leaves.

    The job waits up to `wait_s` seconds for a worker. A worker that takes it has the time of the
    job's policy. If the worker is lost before anything was sent to the client, the job runs again
    unnoticed. After that the call fails, because the second answer would not continue the first.
    `on_detach` is called once, with the job and whether the call is finished.
    """

    def __init__(
        self,
        store: JobStore,
        job: Job,
        shutdown: ShutdownState,
        wait_s: float,
        on_detach: Callable[[Job, bool], None],
        wire_format: WireFormat,
        *,
        streaming: bool,
    ) -> None:
        super().__init__(wire_format, CallContext(), streaming=streaming)
        self._store = store
        self._job = job
        self._shutdown = shutdown
        self._wait_s = wait_s
        self._on_detach = on_detach
        self._deadline = asyncio.get_running_loop().time() + wait_s
        # The attempt and the number of the last chunk that was read.
        self._position = (0, 0)
        self._events = self._reassembler()
        self._first_events = b""
        self._has_sent_events = False
        self._is_finished = False
        self._is_detached = False

    async def complete(self) -> JsonObject:
        """Wait for the job to complete and return the body in its output. Raises CallFailed."""
        try:
            job = await self._wait_until_completed()
        finally:
            self.abort()
        output = orjson.loads(job.output) if job.output is not None else None
        if output == []:
            # A generator handler without `return_aggregate_stream` has its output in chunks only.
            chunks = await self._store.read_chunks(job.id, (0, 0), 0)
            output = [orjson.loads(chunk.value) for chunk in chunks]
        return read_body(output)

    async def _wait_until_completed(self) -> Job:
        while not (job := await self._get_job()).status.is_final:
            waiting = self._store.wait(job.id, _POLL_INTERVAL_S)
            final_job = await self._unless_shutdown(waiting, None)
            if final_job is not None and final_job.status.is_final:
                # Use this one: the store may have deleted the job since.
                job = final_job
                break
        self._is_finished = True
        if job.status is not JobStatus.COMPLETED:
            raise CallFailed(describe_job_failure(job))
        return job

    async def open(self) -> None:
        """Wait for the first events of the stream. Raises CallFailed."""
        try:
            self._first_events = await self._next_events()
        except BaseException:
            self.abort()
            raise

    async def stream(self) -> AsyncGenerator[bytes | JsonObject, None]:
        """Yield the events of an open stream; an error is the last of them."""
        sent = SentBlocks(self._first_events, self._first_events)
        yield self._first_events
        try:
            while not self._events.done:
                if events := await self._next_events():
                    sent = SentBlocks(self._first_events, events)
                    yield events
        except Exception as error:
            # Any error: a stream that ends without one looks like a complete answer to some
            # clients.
            yield self.encode_stream_error(error_info(error), sent)

    def abort(self) -> None:
        """Stop following the job."""
        if not self._is_detached:
            self._is_detached = True
            self._on_detach(self._job, self._is_finished)

    def _reassembler(self) -> SSEReassembler:
        return SSEReassembler(has_names=self.format.stream == "named-events")

    async def _next_events(self) -> bytes:
        """Wait for more events and return all that are available; none only at the end.

        Raises CallFailed.
        """
        events = b""
        while not events and not self._events.done:
            # Read the job before its chunks: if it is final now, the chunks read next are all.
            job = await self._get_job()
            reading = self._store.read_chunks(job.id, self._position, _POLL_INTERVAL_S)
            if chunks := await self._unless_shutdown(reading, []):
                events = self._feed_chunks(chunks)
            elif job.status.is_final:
                events = self._finish(job)
        self._has_sent_events = True
        # After the last event the job need not be cancelled: it ends by itself.
        self._is_finished |= self._events.done
        return events

    def _feed_chunks(self, chunks: list[Chunk]) -> bytes:
        if self._position[0] not in (0, chunks[0].attempt):
            self._restart()
        self._position = (chunks[-1].attempt, chunks[-1].number)
        return b"".join([self._events.feed(orjson.loads(chunk.value)) for chunk in chunks])

    def _finish(self, job: Job) -> bytes:
        self._is_finished = True
        if job.status is not JobStatus.COMPLETED:
            raise CallFailed(describe_job_failure(job))
        if not self._position[0] and job.output is not None:
            # The worker does not stream: its events are in the output.
            return self._events.feed(orjson.loads(job.output)) + self._events.finish()
        return self._events.finish()

    async def _get_job(self) -> Job:
        """Return the current job. Raises CallFailed if the call must not wait for it any longer."""
        job = await self._store.get(self._job.id)
        if job is None:
            raise CallFailed(ErrorInfo("the call's job is not kept any more", _TIMEOUT))
        is_queued = job.status is JobStatus.IN_QUEUE
        if self._position[0] and (self._position[0] != job.attempt or is_queued):
            self._restart()
        if job.status.is_final:
            return job
        if self._shutdown.deadline_passed.is_set() or (
            is_queued and self._shutdown.draining.is_set()
        ):
            raise CallFailed(SHUTTING_DOWN_ERROR)
        if is_queued and asyncio.get_running_loop().time() >= self._deadline:
            message = (
                f"no worker of endpoint {job.endpoint} took the call within {self._wait_s:g} s"
            )
            raise CallFailed(ErrorInfo(message, _TIMEOUT))
        return job

    def _restart(self) -> None:
        """Discard the output of a lost worker. Raises CallFailed if some of it was sent."""
        if self._has_sent_events:
            raise CallFailed(ErrorInfo("the worker was lost in the middle of its answer", _LOST))
        self._events = self._reassembler()
        self._position = (0, 0)

    async def _unless_shutdown(self, work: Awaitable[T], otherwise: T) -> T:
        """Return the result of `work`, or `otherwise` as soon as the shutdown advances."""
        shutdown = self._shutdown
        until = (
            shutdown.wait_until_deadline
            if shutdown.draining.is_set()
            else shutdown.wait_until_draining
        )
        return await until(work, otherwise)

"""One OpenAI call as a job in the queue: listened to, or waited for, for a client that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson

from emulator.http.shutdown_state import SHUTTING_DOWN_ERROR, ShutdownState
from emulator.openai.worker_output import CallFailed, SSEReassembler, describe_job_failure
from handler.errors import ErrorInfo, ErrorMapping
from jobs import Chunk, Job, JobStatus, JobStore

T = TypeVar("T")

# How long what nothing wakes a reader for may stay unnoticed: a worker that is lost.
_LOOK_S = 0.5
_TIMEOUT = ErrorMapping(504, "timeout_error", retryable=True)
_LOST = ErrorMapping(502, "worker_error", retryable=True)


class QueuedCall:
    """A call whose job nobody but its client knows of, so the job ends when the client leaves.

    It waits `wait_s` for a worker, as long as `/runsync` waits for an end; a worker that has it is
    given the time of the job's policy. A job that is lost runs again unseen while nothing of it was
    sent on; after that an answer that begins anew would be a lie.
    """

    def __init__(
        self,
        store: JobStore,
        job: Job,
        shutdown: ShutdownState,
        wait_s: float,
        on_left: Callable[[Job, bool], None],
    ) -> None:
        self._store = store
        self._job = job
        self._shutdown = shutdown
        self._wait_s = wait_s
        self._on_left = on_left
        self._until = asyncio.get_running_loop().time() + wait_s
        # Of the last chunk that was read.
        self._place = (0, 0)
        self._events = SSEReassembler()
        self._said = False
        self._over = False
        self._left = False

    @property
    def done(self) -> bool:
        """Whether the last event has been returned."""
        return self._events.done

    async def end(self) -> Job:
        """Wait for the job's end. Raises CallFailed."""
        while not (job := await self._look()).status.is_final:
            ended = await self._undrained(self._store.wait(job.id, _LOOK_S), None)
            if ended is not None and ended.status.is_final:
                # It may have been forgotten since.
                job = ended
                break
        self._over = True
        if job.status is not JobStatus.COMPLETED:
            raise CallFailed(describe_job_failure(job))
        return job

    async def events(self) -> bytes:
        """Wait for the next events and return them, all there are; `[DONE]` is the last of all.

        Raises CallFailed.
        """
        block = b""
        while not block:
            # Before its chunks: an end that is known before them is behind all of them.
            job = await self._look()
            read = self._store.read_chunks(job.id, self._place, _LOOK_S)
            if chunks := await self._undrained(read, []):
                block = self._heard(chunks)
            elif job.status.is_final:
                block = self._ended(job)
        self._said = True
        # A job that has said all that it will say is left alone to end.
        self._over |= self.done
        return block

    def leave(self) -> None:
        """Have no more to do with the job; `on_left` is told whether it had said all it will."""
        if not self._left:
            self._left = True
            self._on_left(self._job, self._over)

    def _heard(self, chunks: list[Chunk]) -> bytes:
        if self._place[0] not in (0, chunks[0].attempt):
            self._begin_anew()
        self._place = (chunks[-1].attempt, chunks[-1].number)
        return b"".join([self._events.feed(orjson.loads(chunk.value)) for chunk in chunks])

    def _ended(self, job: Job) -> bytes:
        self._over = True
        if job.status is not JobStatus.COMPLETED:
            raise CallFailed(describe_job_failure(job))
        if not self._place[0] and job.output is not None:
            # Of a worker that does not stream.
            return self._events.feed(orjson.loads(job.output)) + self._events.finish()
        return self._events.finish()

    async def _look(self) -> Job:
        """Return the job as it is now. Raises CallFailed where it is not worth waiting for."""
        job = await self._store.get(self._job.id)
        if job is None:
            raise CallFailed(ErrorInfo("the call's job is not kept any more", _TIMEOUT))
        if self._place[0] and (self._place[0] != job.attempt or job.status is JobStatus.IN_QUEUE):
            self._begin_anew()
        if job.status.is_final:
            return job
        waits = job.status is JobStatus.IN_QUEUE
        if self._shutdown.deadline_passed.is_set() or (waits and self._shutdown.draining.is_set()):
            raise CallFailed(SHUTTING_DOWN_ERROR)
        if waits and asyncio.get_running_loop().time() >= self._until:
            said = f"no worker of endpoint {job.endpoint} took the call within {self._wait_s:g} s"
            raise CallFailed(ErrorInfo(said, _TIMEOUT))
        return job

    def _begin_anew(self) -> None:
        """Forget what a lost worker has said. Raises CallFailed where the client has some of it."""
        if self._said:
            raise CallFailed(ErrorInfo("the worker was lost in the middle of its answer", _LOST))
        self._events = SSEReassembler()
        self._place = (0, 0)

    async def _undrained(self, work: Awaitable[T], otherwise: T) -> T:
        """Return what `work` returns, or the other thing as soon as the server's end goes on."""
        shutdown = self._shutdown
        until = (
            shutdown.wait_until_deadline
            if shutdown.draining.is_set()
            else shutdown.wait_until_draining
        )
        return await until(work, otherwise)

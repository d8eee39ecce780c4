"""Answering what comes through a queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from structlog.contextvars import bind_contextvars

from batch.input.line import BadLine
from batch.line_executor import EngineLost, LineExecutor, LineOutcome
from batch.progress import BatchProgress
from batch.queue.message import Message, failure_line, is_success_line, parse_message
from batch.queue.result_store import BAD_LINE, NOT_ANSWERED, BucketResultStore
from jobs import Job, JobsError, Json, StoreUnavailable
from jobs.sqs.errors import QueueRefused

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MIN_RETRY_DELAY_S = 0.5
_MAX_RETRY_DELAY_S = 30.0


class MessageQueue(Protocol):
    """What a worker needs of a queue; `JobQueue` has the contracts."""

    async def receive(
        self, endpoint: str, worker_id: str, *, lease_s: float, wait_s: float, limit: int
    ) -> list[Job]:
        """Lease some jobs."""

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Make a lease longer."""

    async def ack(self, job_id: str, attempt: int, *, output: Json | None = None) -> bool:
        """End a job."""

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Give a job back."""


class WorkerStopped(Exception):
    """The worker cannot go on; the message says why. What it had is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a worker takes messages.

    It generates `slots` at a time and holds `at_once`, so that the next are there when a slot is
    free. Each has a lease of `lease_s`, which is renewed at a third of it. The `last` receive is
    not answered any more: it is for the error, which somebody must be left to write when a message
    has killed all who tried. `dead_letters` says that the queue takes it away after that.
    """

    queue_url: str
    worker_id: str
    slots: int
    concurrency: int
    lease_s: float
    poll_s: float
    max_attempts: int
    max_receives: int
    has_dead_letter_queue: bool
    until_empty: bool = False


class QueueWorker:
    """Receives, answers, keeps and deletes, in this order, for as long as it is let.

    An answer is in the bucket before its message is deleted, so a kill at any point costs what is
    under way and loses nothing; what another one has answered meanwhile is found in the bucket, and
    the message deleted. A failure that may pass gives the message back. One that was received for
    the last time gets an error in the bucket and is left to the queue's redrive policy: SQS moves
    it with all its attributes and in one step, where a send and a delete of ours would be two, with
    a kill between them.

    Owned by the event loop; the queue and the results have threads.
    """

    def __init__(
        self,
        queue: MessageQueue,
        results: BucketResultStore,
        answerer: LineExecutor,
        tally: BatchProgress,
        model: str,
        terms: WorkerConfig,
    ) -> None:
        self._queue = queue
        self._results = results
        self._answerer = answerer
        self._tally = tally
        self._model = model
        self._terms = terms
        self._slots = asyncio.Semaphore(terms.slots)
        self._under_way: dict[asyncio.Task[None], Job] = {}
        self._stopping = False
        self._failure: Exception | None = None

    @property
    def in_progress(self) -> int:
        """How many messages are being answered."""
        return len(self._under_way)

    def stop(self) -> None:
        """Receive no more; what is generated is finished, and the rest given back."""
        self._stopping = True
        # Those who wait for a slot are to see it now, and not when somebody has finished.
        for _ in self._under_way:
            self._slots.release()

    async def run(self) -> None:
        """Work until `stop`, or until the queue is empty where that is asked for.

        Raises:
            WorkerStopped: the engine has given up, or the queue or the bucket refuses.
        """
        beat = asyncio.create_task(self._beat())
        try:
            await self._receive_all()
            while self._under_way:
                await asyncio.wait(self._under_way)
        finally:
            beat.cancel()
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(beat, *self._under_way, return_exceptions=True)
        if self._failure is not None:
            raise WorkerStopped(str(self._failure)) from None

    async def _receive_all(self) -> None:
        terms, pause_s = self._terms, _MIN_RETRY_DELAY_S
        while not self._stopping:
            free = terms.concurrency - len(self._under_way)
            if free <= 0:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                continue
            # Where the end of the queue is the end, one look is enough when all is done.
            wait_s = 1.0 if terms.until_empty else terms.poll_s
            try:
                jobs = await self._queue.receive(
                    terms.queue_url,
                    terms.worker_id,
                    lease_s=terms.lease_s,
                    wait_s=wait_s,
                    limit=free,
                )
            except StoreUnavailable as error:
                logger.warning("nothing is received for %.1f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_DELAY_S)
                continue
            except JobsError as error:
                self._fail(error)
                return
            pause_s = _MIN_RETRY_DELAY_S
            for job in jobs:
                task = asyncio.create_task(self._handle(job))
                self._under_way[task] = job
                task.add_done_callback(self._under_way.pop)
            if terms.until_empty and not jobs:
                if not self._under_way:
                    return
                # One of them may be given back.
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    async def _handle(self, job: Job) -> None:
        bind_contextvars(job_id=job.id)
        try:
            await self._settle(job, parse_message(job.input, self._model))
        except StoreUnavailable as error:
            await self._give_back(job, str(error))
        except (QueueRefused, EngineLost) as error:
            self._fail(error)
            await self._give_back(job)
        except Exception:
            logger.exception("message %s was not settled", job.id)
            await self._give_back(job, "it was not settled")

    async def _settle(self, job: Job, message: Message) -> None:
        """Do with a message what is to be done."""
        found = await asyncio.to_thread(self._results.find, message.key)
        last = job.attempt >= self._terms.max_receives
        if found is not None:
            if last and self._terms.has_dead_letter_queue and not is_success_line(found):
                await self._give_back(job)
            else:
                await self._queue.ack(job.id, job.attempt)
            return
        line, problem = message.line, message.problem or self._problem(message)
        if line is None or problem:
            await self._end(job, LineOutcome(failure_line(message, BAD_LINE, problem), ok=False))
        elif last:
            tried = job.attempt - 1
            problem = f"the message was received {tried} times and never answered"
            await self._write_off(job, failure_line(message, NOT_ANSWERED, problem))
        else:
            async with self._slots:
                if self._stopping:
                    await self._give_back(job)
                    return
                # What crashes the engine must not do so beside others each time.
                alone = 1 < job.attempt == self._terms.max_receives - 1
                outcome = await self._answerer.answer(line, alone=alone)
            if outcome.ok or not outcome.retryable:
                await self._end(job, outcome)
            elif job.attempt + 1 < self._terms.max_receives:
                self._tally.retries += 1
                await self._give_back(job, "it was not answered, and may be another time")
            else:
                await self._write_off(job, outcome.line)

    def _problem(self, message: Message) -> str:
        """Return why the engine need not be asked."""
        try:
            if message.line is not None:
                self._answerer.check(message.line)
        except BadLine as error:
            return str(error)
        return ""

    async def _end(self, job: Job, outcome: LineOutcome) -> None:
        """Keep what became of a message, and delete it."""
        if await self._insist(lambda: self._queue.ack(job.id, job.attempt, output=outcome.line)):
            self._tally.record_line(ok=outcome.ok, tokens=outcome.tokens)

    async def _write_off(self, job: Job, line: bytes) -> None:
        """Keep the error of a message that is not tried again, and leave it to the queue."""
        if not self._terms.has_dead_letter_queue:
            await self._end(job, LineOutcome(line, ok=False))
            return
        ended = job.replace(output=line)
        await self._insist(lambda: asyncio.to_thread(self._results.keep, ended))
        self._tally.record_line(ok=False, tokens=0)
        await self._give_back(job)

    async def _insist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Try a few times what may pass: an answer has cost more than a second request."""
        pause_s = _MIN_RETRY_DELAY_S
        for _ in range(self._terms.max_attempts - 1):
            try:
                return await act()
            except StoreUnavailable as error:
                logger.warning("tried again after %.1f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_DELAY_S)
        return await act()

    async def _give_back(self, job: Job, reason: str | None = None) -> None:
        try:
            await self._queue.nack(job.id, job.attempt, reason)
        except JobsError as error:
            logger.warning("message %s comes back when its lease is over: %s", job.id, error)

    async def _beat(self) -> None:
        """Renew the leases, and stop what another has been given."""
        while True:
            await asyncio.sleep(self._terms.lease_s / 3)
            under_way = [*self._under_way.items()]
            await asyncio.gather(*(self._renew(task, job) for task, job in under_way))

    async def _renew(self, task: asyncio.Task[None], job: Job) -> None:
        try:
            held = await self._queue.extend(job.id, job.attempt, self._terms.lease_s)
        except JobsError as error:
            logger.warning(
                "the lease of message %s was not renewed: %s",
                job.id,
                error,
                extra={"job_id": job.id},
            )
            return
        if not held and task in self._under_way:
            logger.warning("message %s is another's by now", job.id, extra={"job_id": job.id})
            task.cancel()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop()

"""A worker that answers the messages of a queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from structlog.contextvars import bind_contextvars

from batch.input.line import BadLine
from batch.line_executor import EngineLost, LineExecutor, LineOutcome
from batch.progress import BatchProgress
from batch.queue.message import Message, failure_line, is_success_line, parse_message
from batch.queue.result_store import BAD_LINE, NOT_ANSWERED, BucketResultStore
from batch.queue.worker_config import WorkerConfig
from jobs import Job, JobsError, Json, StoreUnavailable
from jobs.sqs.errors import QueueRefused

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MIN_RETRY_DELAY_S = 0.5
_MAX_RETRY_DELAY_S = 30.0


class MessageQueue(Protocol):
    """The part of `JobQueue` that a worker uses; see there for the contracts."""

    async def receive(
        self, endpoint: str, worker_id: str, *, lease_s: float, wait_s: float, limit: int
    ) -> list[Job]:
        """Lease up to `limit` jobs."""

    async def extend(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend a lease."""

    async def ack(self, job_id: str, attempt: int, *, output: Json | None = None) -> bool:
        """Finish a job."""

    async def nack(self, job_id: str, attempt: int, reason: str | None = None) -> bool:
        """Return a job to the queue."""


class WorkerStopped(Exception):
    """The worker cannot continue, for the reason in the message. Its jobs returned to the queue."""


class QueueWorker:
    """Receives messages, answers them, stores the answers and deletes the messages, in this order.

    An answer is in the bucket before its message is deleted, so a kill at any point only repeats
    the work in progress. If another worker has stored an answer meanwhile, the message is deleted.
    After a temporary failure the message returns to the queue. A message that is received for the
    last time gets an error in the bucket and is left to the queue's redrive policy, because SQS
    moves it atomically and with all its attributes, while a kill could interrupt a send and a
    delete by the worker.

    Owned by the event loop; the queue and the result store use threads.
    """

    def __init__(
        self,
        queue: MessageQueue,
        results: BucketResultStore,
        executor: LineExecutor,
        progress: BatchProgress,
        model: str,
        config: WorkerConfig,
        *,
        min_retry_delay_s: float = _MIN_RETRY_DELAY_S,
    ) -> None:
        self._queue = queue
        self._results = results
        self._executor = executor
        self._progress = progress
        self._model = model
        self._config = config
        self._min_retry_delay_s = min_retry_delay_s
        self._slots = asyncio.Semaphore(config.slots)
        self._messages: dict[asyncio.Task[None], Job] = {}
        self._stopping = False
        self._failure: Exception | None = None

    @property
    def in_progress(self) -> int:
        """The number of messages that are being answered."""
        return len(self._messages)

    def stop(self) -> None:
        """Stop receiving messages; finish the messages that have a slot and return the others."""
        self._stopping = True
        # Wake the messages that wait for a slot, so that they return to the queue immediately.
        for _ in self._messages:
            self._slots.release()

    async def run(self) -> None:
        """Answer messages until `stop`, or with `until_empty`, until the queue is empty.

        Raises:
            WorkerStopped: the engine is dead, or the queue or the bucket rejected a request.
        """
        renewal = asyncio.create_task(self._renew_leases())
        try:
            await self._receive_messages()
            while self._messages:
                await asyncio.wait(self._messages)
        finally:
            renewal.cancel()
            for task in self._messages:
                task.cancel()
            await asyncio.gather(renewal, *self._messages, return_exceptions=True)
        if self._failure is not None:
            raise WorkerStopped(str(self._failure)) from None

    async def _receive_messages(self) -> None:
        config, delay_s = self._config, self._min_retry_delay_s
        while not self._stopping:
            free_places = config.concurrency - len(self._messages)
            if free_places <= 0:
                await asyncio.wait(self._messages, return_when=asyncio.FIRST_COMPLETED)
                continue
            # With `until_empty`, a short wait is enough to see that the queue is empty.
            wait_s = 1.0 if config.until_empty else config.poll_s
            try:
                jobs = await self._queue.receive(
                    config.queue_url,
                    config.worker_id,
                    lease_s=config.lease_s,
                    wait_s=wait_s,
                    limit=free_places,
                )
            except StoreUnavailable as error:
                logger.warning("receiving failed, retrying in %.1f s: %s", delay_s, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MAX_RETRY_DELAY_S)
                continue
            except JobsError as error:
                self._fail(error)
                return
            delay_s = self._min_retry_delay_s
            for job in jobs:
                task = asyncio.create_task(self._handle(job))
                self._messages[task] = job
                task.add_done_callback(self._messages.pop)
            if config.until_empty and not jobs:
                if not self._messages:
                    return
                # A message in progress may return to the queue.
                await asyncio.wait(self._messages, return_when=asyncio.FIRST_COMPLETED)

    async def _handle(self, job: Job) -> None:
        bind_contextvars(job_id=job.id)
        try:
            await self._settle(job, parse_message(job.input, self._model))
        except StoreUnavailable as error:
            await self._return_to_queue(job, str(error))
        except (QueueRefused, EngineLost) as error:
            self._fail(error)
            await self._return_to_queue(job)
        except Exception:
            logger.exception("message %s was not settled", job.id)
            await self._return_to_queue(job, "it was not settled")

    async def _settle(self, job: Job, message: Message) -> None:
        """Answer a message, or store its error, or return it to the queue."""
        stored_line = await asyncio.to_thread(self._results.find, message.key)
        is_last_receive = job.attempt >= self._config.max_receives
        if stored_line is not None:
            if (
                is_last_receive
                and self._config.has_dead_letter_queue
                and not is_success_line(stored_line)
            ):
                await self._return_to_queue(job)
            else:
                await self._queue.ack(job.id, job.attempt)
            return
        line, problem = message.line, message.problem or self._find_problem(message)
        if line is None or problem:
            await self._finish(job, LineOutcome(failure_line(message, BAD_LINE, problem), ok=False))
        elif is_last_receive:
            attempts = job.attempt - 1
            problem = f"the message was received {attempts} times and never answered"
            await self._give_up(job, failure_line(message, NOT_ANSWERED, problem))
        else:
            async with self._slots:
                if self._stopping:
                    await self._return_to_queue(job)
                    return
                # The last attempt is exclusive: if the message crashes the engine, it must not fail
                # the same other messages each time.
                exclusive = 1 < job.attempt == self._config.max_receives - 1
                outcome = await self._executor.answer(line, exclusive=exclusive)
            if outcome.ok or not outcome.retryable:
                await self._finish(job, outcome)
            elif job.attempt + 1 < self._config.max_receives:
                self._progress.retries += 1
                await self._return_to_queue(job, "the attempt failed, another one may succeed")
            else:
                await self._give_up(job, outcome.line)

    def _find_problem(self, message: Message) -> str:
        """Return why the line is invalid, or an empty text."""
        try:
            if message.line is not None:
                self._executor.check(message.line)
        except BadLine as error:
            return str(error)
        return ""

    async def _finish(self, job: Job, outcome: LineOutcome) -> None:
        """Store the outcome of a message, and delete the message."""
        if await self._retry(lambda: self._queue.ack(job.id, job.attempt, output=outcome.line)):
            self._progress.record_line(ok=outcome.ok, tokens=outcome.tokens)

    async def _give_up(self, job: Job, line: bytes) -> None:
        """Store the error of a message without further attempts.

        With a dead-letter queue the message returns to its queue, so that SQS moves it there.
        """
        if not self._config.has_dead_letter_queue:
            await self._finish(job, LineOutcome(line, ok=False))
            return
        finished_job = job.replace(output=line)
        await self._retry(lambda: asyncio.to_thread(self._results.keep, finished_job))
        self._progress.record_line(ok=False, tokens=0)
        await self._return_to_queue(job)

    async def _retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run an operation with retries: generating the answer again would cost more."""
        delay_s = self._min_retry_delay_s
        for _ in range(self._config.max_attempts - 1):
            try:
                return await operation()
            except StoreUnavailable as error:
                logger.warning("a request failed, retrying in %.1f s: %s", delay_s, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MAX_RETRY_DELAY_S)
        return await operation()

    async def _return_to_queue(self, job: Job, reason: str | None = None) -> None:
        try:
            await self._queue.nack(job.id, job.attempt, reason)
        except JobsError as error:
            logger.warning("message %s returns when its lease expires: %s", job.id, error)

    async def _renew_leases(self) -> None:
        """Renew the leases periodically, and cancel messages that were leased to another worker."""
        while True:
            await asyncio.sleep(self._config.lease_s / 3)
            messages = [*self._messages.items()]
            await asyncio.gather(*(self._renew(task, job) for task, job in messages))

    async def _renew(self, task: asyncio.Task[None], job: Job) -> None:
        try:
            is_extended = await self._queue.extend(job.id, job.attempt, self._config.lease_s)
        except JobsError as error:
            logger.warning(
                "the lease of message %s was not renewed: %s",
                job.id,
                error,
                extra={"job_id": job.id},
            )
            return
        if not is_extended and task in self._messages:
            logger.warning(
                "message %s was leased to another worker", job.id, extra={"job_id": job.id}
            )
            task.cancel()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop()

"""Runs one batch from its current state to its end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from structlog.contextvars import bind_contextvars

from batch.input.source import InputError, LineSource
from batch.line_executor import EngineLost
from batch.output.journal import BatchJournal, JournalDamaged, JournalError, JournalHeader
from batch.progress import BatchProgress
from batch.runner import BatchRunner
from common.failpoints import failpoint
from emulator.batches.context import BatchContext
from emulator.batches.file_storage import InsufficientStorage
from emulator.batches.input_validation import list_problems, validate_input
from emulator.batches.models import (
    FILE_ID_PREFIX,
    OUTPUT_PURPOSE,
    BatchStatus,
    StoredBatch,
    StoredFile,
)
from emulator.batches.repository import Reservation, unix_time
from emulator.batches.results import write_results
from emulator.batches.uncancellable import run_uncancellable, wait_until_done
from engine.errors import EngineError

logger = logging.getLogger(__name__)

# The delay before an operation is repeated that failed because the disk or BATCH_STORE_MB is full.
_RETRY_DELAY_S = 2.0
# Space that must be free before a line is answered.
_MIN_FREE_BYTES = 65_536


class BatchExecutor:
    """Runs one batch to its end, across any number of server restarts.

    The batch's status and the journal of its answers are on disk and say where to continue. A line
    whose answer is in the journal is never answered again. A kill loses only the lines that are
    being answered. Owned by the event loop; files are read and written on threads, one at a time.
    """

    def __init__(self, batch: StoredBatch, context: BatchContext, remaining_s: float) -> None:
        self.id = batch.id
        self._context = context
        self._repository = context.repository
        # On the monotonic clock, which a change of the system time does not affect.
        self._deadline = asyncio.get_running_loop().time() + remaining_s
        self._cancelled = asyncio.Event()
        self._stopping = False
        self._journal: BatchJournal | None = None
        self._runner: BatchRunner | None = None
        self._last_counts = (0, 0)
        # For the journal, whose answers become the batch's files.
        self._reservation = Reservation(context.repository)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of completed and failed lines, as far as the journal has been read."""
        if (journal := self._journal) is not None:
            self._last_counts = (journal.done - journal.failed, journal.failed)
        return self._last_counts

    @property
    def is_answering(self) -> bool:
        """Whether lines are being answered."""
        return self._runner is not None

    def cancel(self) -> None:
        """Stop answering lines; the batch's status on disk is `cancelling` already."""
        self._cancelled.set()

    def stop(self) -> None:
        """Start no new lines and finish the running lines. The next start continues the batch."""
        self._stopping = True
        if self._runner is not None:
            self._runner.stop()

    async def run(self) -> None:
        """Run the batch; return when it has ended, or when no line runs after a `stop`."""
        # The tasks that answer its lines inherit this.
        bind_contextvars(batch_id=self.id)
        try:
            while not await self._try_to_finish():
                # Answers that were not synced may be lost: read the journal from disk again.
                await self._close_journal()
                await asyncio.sleep(_RETRY_DELAY_S)
        finally:
            await self._close_journal()
            if self._batch.status.is_final:
                # The journal is removed, and the files made of it are counted instead.
                self._reservation.release()

    async def _try_to_finish(self) -> bool:
        """Run all steps that are left; return False if one failed and must be retried."""
        try:
            await self._run_steps()
        except (InsufficientStorage, OSError, JournalError) as error:
            reason: object = error
            if isinstance(error, OSError):
                reason = f"the disk of BATCH_DIR does not take its answers: {error.strerror}"
            logger.error("batch %s has to wait: %s", self.id, reason)
            return False
        except Exception:
            logger.exception("batch %s could not go on", self.id)
            return False
        return True

    async def _run_steps(self) -> None:
        try:
            if self._batch.status is BatchStatus.VALIDATING:
                await self._validate()
            if self._batch.status is BatchStatus.IN_PROGRESS:
                await self._answer_until_deadline()
            if not (self._stopping or self._batch.status.is_final):
                await self._finish()
        except (InputError, JournalDamaged) as error:
            logger.error("batch %s has failed: %s", self.id, error)
            message = "its input, or the answers so far, cannot be read any more"
            await self._repository.update_batch(
                self.id, lambda batch, at: batch.fail_input_lost(message, at)
            )

    @property
    def _batch(self) -> StoredBatch:
        return self._repository.batch(self.id)

    @property
    def _source(self) -> LineSource:
        path = self._repository.storage.content_path(self._batch.input_file_id)
        return self._context.policy.limits.open_source(path)

    async def _validate(self) -> None:
        batch, limits = self._batch, self._context.policy.limits
        summary = await asyncio.to_thread(validate_input, self._source.path, limits, batch.endpoint)
        await self._repository.update_batch(
            self.id,
            lambda batch, at: (
                batch.fail_validation(list_problems(summary), at)
                if summary.problem_count
                else batch.start(summary.digest, summary.lines, at)
            ),
        )
        failpoint("batch-validated")

    async def _answer_until_deadline(self) -> None:
        """Answer lines until all are answered, the batch is cancelled or its deadline passes."""
        answering = asyncio.ensure_future(self._answer_lines())
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        tasks: set[asyncio.Future[Any]] = {answering, cancelled}
        remaining_s = self._deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                tasks, timeout=max(0, remaining_s), return_when=asyncio.FIRST_COMPLETED
            )
            has_finished = answering.done()
        finally:
            for task in tasks:
                task.cancel()
            await wait_until_done(tasks)
        error = None if answering.cancelled() else answering.exception()
        if has_finished and error is not None:
            raise error

    async def _answer_lines(self) -> None:
        context = self._context
        async with context.answer_lock:
            journal = await self._open_journal()
            if journal.done == journal.lines:
                return
            # Answer no line whose answer could not be stored.
            self._reservation.reserve_up_to(journal.size + _MIN_FREE_BYTES)
            try:
                await context.engine.ready()
                if self._stopping:
                    return
                self._runner = BatchRunner(
                    self._source,
                    journal,
                    context.line_executor,
                    BatchProgress(journal.lines, on_line=context.on_line),
                    concurrency=context.policy.concurrency(context.engine.slots),
                    max_attempts=context.policy.max_attempts,
                )
                try:
                    await self._runner.run()
                finally:
                    self._runner = None
            except (EngineError, EngineLost) as error:
                logger.error("batch %s waits for the server's next start: %s", self.id, error)
                # The batch can still be cancelled or expire.
                await asyncio.Event().wait()

    async def _open_journal(self) -> BatchJournal:
        """Return the journal of the batch's answers. Raises JournalError or OSError."""
        batch, path = self._batch, self._repository.storage.journal_path(self.id)
        header = JournalHeader(batch.digest, batch.lines)

        def open_and_recover() -> BatchJournal:
            # Store it before anything can fail, even if the caller was cancelled: it is locked
            # until it is closed.
            journal = self._journal = self._journal or BatchJournal(
                path, expected=header, reserve=self._reservation.reserve_up_to
            )
            if journal.header is None:
                journal.begin(header)
            elif journal.lost_lines:
                logger.warning(
                    "batch %s: up to %d lines are answered again, because their records in %s are "
                    "damaged",
                    self.id,
                    journal.lost_lines,
                    path.name,
                )
            return journal

        return await run_uncancellable(open_and_recover)

    async def _finish(self) -> None:
        """Write the output and error files, then their records, then the batch's final status."""
        repository = self._repository
        ids = (repository.new_id(FILE_ID_PREFIX), repository.new_id(FILE_ID_PREFIX))
        batch = await repository.update_batch(self.id, lambda batch, at: batch.finalize(ids, at))
        failpoint("batch-finalizing")
        ids = batch.results or ids
        journal = await self._open_journal()
        is_cancelled = batch.status is BatchStatus.CANCELLING
        unanswered_code = "batch_cancelled" if is_cancelled else "batch_expired"
        source, storage = self._source, repository.storage
        result, sizes = await run_uncancellable(
            lambda: write_results(storage, ids, journal, source, unanswered_code)
        )
        failpoint("batch-written")
        for file_id, size in sizes.items():
            kind = "output" if file_id == result.output_file_id else "error"
            await repository.add_file(self._build_file(file_id, size, f"{self.id}_{kind}.jsonl"))
            failpoint("batch-file-kept")
        await repository.update_batch(self.id, lambda batch, at: batch.finish(result, at))
        failpoint("batch-ended")

    def _build_file(self, file_id: str, size: int, name: str) -> StoredFile:
        created_at = unix_time()
        retention_s = self._batch.output_expires_s or int(self._context.policy.retention_s)
        return StoredFile(
            id=file_id,
            bytes=size,
            created_at=created_at,
            filename=name,
            purpose=OUTPUT_PURPOSE,
            expires_at=created_at + retention_s,
        )

    async def _close_journal(self) -> None:
        self._last_counts = self.counts
        journal, self._journal = self._journal, None
        if journal is None:
            return
        try:
            if self._batch.status.is_final:
                journal.remove()
            await run_uncancellable(journal.close)
        except OSError as error:
            logger.error("batch %s: its answers may not be on disk: %s", self.id, error.strerror)


def with_live_counts(batch: StoredBatch, executor: BatchExecutor | None) -> StoredBatch:
    """Return a batch with the current counts of its executor, if it has one."""
    if executor is None or batch.status.is_final:
        return batch
    completed, failed = executor.counts
    return replace(batch, completed=completed, failed=failed)

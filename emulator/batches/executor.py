"""One batch that has not ended, on its way there."""

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
from emulator.batches.batch import BatchStatus, StoredBatch
from emulator.batches.context import Means
from emulator.batches.file import OUTPUT, StoredFile
from emulator.batches.file import PREFIX as FILE
from emulator.batches.file_storage import NoRoom
from emulator.batches.input_validation import look, told
from emulator.batches.repository import Reservation, now
from emulator.batches.results import write_results
from emulator.batches.uncancellable import all_ended, to_its_end
from engine.errors import EngineError
from jobs.failpoints import failpoint

logger = logging.getLogger(__name__)

# An operation that the disk or BATCH_STORE_MB had no room for is repeated after so long.
_AGAIN_S = 2.0
# So much has to be free before a line is answered.
_FREE_BYTES = 65_536


class Work:
    """Takes one batch from wherever it is to its end, as often as the server is started.

    What is on disk says where that is: the batch's status, and the journal of its answers. A line
    that is there is never answered again; a kill costs those under way. Owned by the event loop;
    files are read and written on threads, one at a time.
    """

    def __init__(self, batch: StoredBatch, means: Means, left_s: float) -> None:
        self.id = batch.id
        self._means = means
        self._store = means.store
        # By a clock that nobody puts forward or back.
        self._due = asyncio.get_running_loop().time() + left_s
        self._cancelled = asyncio.Event()
        self._stopping = False
        self._journal: BatchJournal | None = None
        self._runner: BatchRunner | None = None
        self._counted = (0, 0)
        # For the journal, whose answers become the batch's files.
        self._room = Reservation(means.store)

    @property
    def counts(self) -> tuple[int, int]:
        """How many lines were answered, well and badly, as far as the journal has been read."""
        if (journal := self._journal) is not None:
            self._counted = (journal.done - journal.failed, journal.failed)
        return self._counted

    @property
    def answering(self) -> bool:
        """Whether lines are under way."""
        return self._runner is not None

    def cancel(self) -> None:
        """Answer no more; the batch says on disk already that it is to be cancelled."""
        self._cancelled.set()

    def stop(self) -> None:
        """Begin nothing more; what is under way is finished, and the batch goes on another time."""
        self._stopping = True
        if self._runner is not None:
            self._runner.stop()

    async def run(self) -> None:
        """Return when the batch has ended, or nothing is under way after a `stop`."""
        # Its lines are answered in tasks that inherit this.
        bind_contextvars(batch_id=self.id)
        try:
            while not await self._tried():
                # What was not synced will not be: what is on disk is looked at anew.
                await self._let_go()
                await asyncio.sleep(_AGAIN_S)
        finally:
            await self._let_go()
            if self._batch.status.final:
                # The journal is removed, and the files made of it count by themselves.
                self._room.release()

    async def _tried(self) -> bool:
        """Go as far as it goes; whether that was to the end."""
        try:
            await self._advance()
        except (NoRoom, OSError, JournalError) as error:
            said: object = error
            if isinstance(error, OSError):
                said = f"the disk of BATCH_DIR does not take its answers: {error.strerror}"
            logger.error("batch %s has to wait: %s", self.id, said)
            return False
        except Exception:
            logger.exception("batch %s could not go on", self.id)
            return False
        return True

    async def _advance(self) -> None:
        try:
            if self._batch.status is BatchStatus.VALIDATING:
                await self._look()
            if self._batch.status is BatchStatus.IN_PROGRESS:
                await self._until_over(self._answer())
            if not (self._stopping or self._batch.status.final):
                await self._end()
        except (InputError, JournalDamaged) as error:
            logger.error("batch %s has failed: %s", self.id, error)
            said = "its input or what was answered of it cannot be read any more"
            await self._store.change(self.id, lambda batch, at: batch.lose(said, at))

    @property
    def _batch(self) -> StoredBatch:
        return self._store.batch(self.id)

    @property
    def _source(self) -> LineSource:
        path = self._store.folder.bytes_of(self._batch.input_file_id)
        return self._means.terms.limits.source(path)

    async def _look(self) -> None:
        batch, limits = self._batch, self._means.terms.limits
        found = await asyncio.to_thread(look, self._source.path, limits, batch.endpoint)
        await self._store.change(
            self.id,
            lambda batch, at: (
                batch.refuse(told(found), at)
                if found.problem_count
                else batch.begin(found.digest, found.lines, at)
            ),
        )
        failpoint("batch-looked-over")

    async def _until_over(self, answering: asyncio.Future[None]) -> None:
        """Let lines be answered until they are, the batch is cancelled or its time is up."""
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        both: set[asyncio.Future[Any]] = {answering, cancelled}
        left_s = self._due - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(both, timeout=max(0, left_s), return_when=asyncio.FIRST_COMPLETED)
            over = answering.done()
        finally:
            for task in both:
                task.cancel()
            await all_ended(both)
        failure = None if answering.cancelled() else answering.exception()
        if over and failure is not None:
            raise failure

    def _answer(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._answer_in_turn())

    async def _answer_in_turn(self) -> None:
        means = self._means
        async with means.turn:
            journal = await self._open()
            if journal.done == journal.lines:
                return
            # No line is answered whose answer could not be kept.
            self._room.grow_to(journal.size + _FREE_BYTES)
            try:
                await means.engine.ready()
                if self._stopping:
                    return
                self._runner = BatchRunner(
                    self._source,
                    journal,
                    means.answerer,
                    BatchProgress(journal.lines, on_line=means.on_line),
                    concurrency=means.terms.concurrency(means.engine.slots),
                    max_attempts=means.terms.tries,
                )
                try:
                    await self._runner.run()
                finally:
                    self._runner = None
            except (EngineError, EngineLost) as error:
                logger.error("batch %s waits for the server's next start: %s", self.id, error)
                # It may yet be cancelled or expire.
                await asyncio.Event().wait()

    async def _open(self) -> BatchJournal:
        """Return the journal of the batch's answers. Raises JournalError or OSError."""
        batch, path = self._batch, self._store.folder.journal_of(self.id)
        header = JournalHeader(batch.digest, batch.lines)

        def opened() -> BatchJournal:
            # Kept before anything can fail, and also where nobody waits any more: it is locked.
            journal = self._journal = self._journal or BatchJournal(
                path, expected=header, reserve=self._room.grow_to
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

        return await to_its_end(opened)

    async def _end(self) -> None:
        """Write down what became of the lines, and the batch's end last."""
        store = self._store
        ids = (store.new_id(FILE), store.new_id(FILE))
        batch = await store.change(self.id, lambda batch, at: batch.finalize(ids, at))
        failpoint("batch-finalizing")
        ids = batch.results or ids
        journal = await self._open()
        cancelled = batch.status is BatchStatus.CANCELLING
        undone = "batch_cancelled" if cancelled else "batch_expired"
        source, folder = self._source, store.folder
        results, sizes = await to_its_end(
            lambda: write_results(folder, ids, journal, source, undone)
        )
        failpoint("batch-written")
        for file_id, size in sizes.items():
            kind = "output" if file_id == results.output_file_id else "error"
            await store.add_file(self._file(file_id, size, f"{self.id}_{kind}.jsonl"))
            failpoint("batch-file-kept")
        await store.change(self.id, lambda batch, at: batch.end(results, at))
        failpoint("batch-ended")

    def _file(self, file_id: str, size: int, name: str) -> StoredFile:
        made = now()
        kept_s = self._batch.output_expires_s or int(self._means.terms.kept_s)
        return StoredFile(
            id=file_id,
            bytes=size,
            created_at=made,
            filename=name,
            purpose=OUTPUT,
            expires_at=made + kept_s,
        )

    async def _let_go(self) -> None:
        self._counted = self.counts
        journal, self._journal = self._journal, None
        if journal is None:
            return
        try:
            if self._batch.status.final:
                journal.remove()
            await to_its_end(journal.close)
        except OSError as error:
            logger.error("batch %s: its answers may not be on disk: %s", self.id, error.strerror)


def current(batch: StoredBatch, work: Work | None) -> StoredBatch:
    """Return a batch with its counts as they are at this moment."""
    if work is None or batch.status.final:
        return batch
    completed, failed = work.counts
    return replace(batch, completed=completed, failed=failed)

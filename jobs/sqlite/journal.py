"""The SQLite journal on the event loop: sends batches of changes to the store process."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common.failpoints import failpoint
from jobs.errors import StoreUnavailable, StoreUnusable
from jobs.model import Job
from jobs.ports import Chunk, SavedJob
from jobs.sqlite.client import StoreClient
from jobs.sqlite.database_file import ServerLock, real_path
from jobs.sqlite.frames import encode
from jobs.sqlite.schema import from_row, outdated_chunks, to_row
from jobs.sqlite.write_batch import WriteBatch

logger = logging.getLogger(__name__)

# Changes that no caller waits for are written after this delay, or with changes that one waits for.
WRITE_DELAY_S = 0.05
# Above this size of unwritten changes, `wait_for_capacity` blocks (backpressure).
MAX_PENDING_BYTES = 32_000_000
# Delay before a failed batch is sent again, to a new store process if the old one has ended.
_RETRY_DELAY_S = 0.5
# Time for the store process of an earlier server to end.
_LOCK_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0
# How many store processes may end while they read the database before `load` gives up.
_MAX_LOAD_ATTEMPTS = 3


class SqliteJournal:
    """Saves a store's jobs in an SQLite database, which a separate process writes.

    One batch is written at a time; changes that come meanwhile form the next batch. If the store
    process ends, a new one receives the same batch: writing a batch is idempotent. If the disk
    refuses a batch, the callers of `flush` get the error, and the batch is retried.

    Owned by the event loop; one task exchanges messages with the store process.
    """

    def __init__(self, path: Path, *, lock_wait_s: float = _LOCK_TIMEOUT_S) -> None:
        self._path = path
        # Why the last batch was not written; None if it was.
        self.write_error: str | None = None
        # Ids of the damaged jobs in the database, which are skipped and stay there.
        self.set_aside: list[str] = []
        real = real_path(path)
        self._server_lock = ServerLock(real)
        self._client = StoreClient(real, lock_wait_s)
        self._pending = WriteBatch()
        # Row numbers of the jobs that may be on the disk, and ids of the jobs that certainly are.
        self._row_numbers: dict[str, int] = {}
        self._on_disk: set[str] = set()
        self._next_row_number = itertools.count(1)
        self._has_changes = asyncio.Event()
        self._has_waiters = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()
        self._batch_number = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """The process id of the store process, if there is one."""
        return self._client.pid

    # -- Journal --------------------------------------------------------------------------------

    async def load(self) -> Iterable[SavedJob]:
        """Return all saved jobs, oldest first.

        Raises StoreUnusable, or StoreUnavailable if a later attempt may succeed.
        """
        try:
            self._server_lock.acquire()
        except OSError as error:
            reason = error.strerror or error
            raise StoreUnusable(
                f"the job database {self._path.name} cannot be used: {reason}"
            ) from None
        for _ in range(_MAX_LOAD_ATTEMPTS):
            try:
                self.write_error = await self._client.connect(check=True)
                saved_jobs = await self._read()
            except ConnectionError:
                self._client.kill()
            except BaseException:
                self._client.kill()
                raise
            else:
                failpoint("journal-loaded")
                if self.write_error is not None:
                    logger.error("%s; new jobs are refused until that is over", self.write_error)
                self._task = asyncio.create_task(self._write_forever())
                return saved_jobs
        raise StoreUnavailable(
            f"the job database {self._path.name} was not read: "
            f"{_MAX_LOAD_ATTEMPTS} store processes ended while they read it"
        )

    async def _read(self) -> list[SavedJob]:
        await self._client.send(encode(("load",)))
        saved_jobs: list[SavedJob] = []
        self.set_aside = []
        last_number = 0
        while (message := await self._client.receive())[0] == "rows":
            for row, chunks in message[1]:
                # Damaged rows count too: their numbers must not be used for other jobs.
                last_number = max(last_number, row[0])
                try:
                    job = from_row(row)
                except (KeyError, ValueError, TypeError) as error:
                    self._set_aside(row[0], row[1], error)
                    continue
                self._row_numbers[job.id] = row[0]
                self._on_disk.add(job.id)
                saved_jobs.append(SavedJob(job, [Chunk(*chunk) for chunk in chunks]))
        if message[0] != "loaded":
            raise StoreUnusable(message[1])
        self._next_row_number = itertools.count(last_number + 1)
        # Row numbers are not in this order: a sync job may be published after younger jobs.
        saved_jobs.sort(key=lambda saved: saved.job.created_at)
        return saved_jobs

    def _set_aside(self, number: int, job_id: object, error: Exception) -> None:
        """Log a damaged row and record its job id; the row stays in the database."""
        name = job_id if isinstance(job_id, str) else "unknown"
        logger.error(
            "the job database %s: job %s (row %d) is damaged and set aside: %s",
            self._path.name,
            name,
            number,
            f"{error} is missing" if isinstance(error, KeyError) else error,
        )
        self.set_aside.append(name)

    def save(self, job: Job) -> None:
        """Write the current state of a job, replacing the saved one."""
        self._pending.save(job)
        self._has_changes.set()

    def append_chunks(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Append to a job's stream."""
        self._pending.append_chunks(job_id, chunks)
        if self._pending.bytes > MAX_PENDING_BYTES:
            self._has_capacity.clear()
            self._has_waiters.set()
        self._has_changes.set()

    def delete(self, job_id: str) -> None:
        """Delete a job and its stream."""
        self._pending.delete(job_id, on_disk=job_id in self._row_numbers)
        self._update_capacity()
        self._has_changes.set()

    async def flush(self) -> None:
        """Return when all earlier changes are on the disk. Raises StoreUnavailable."""
        if self._task is None or self._task.done():
            raise StoreUnavailable(f"the job database {self._path.name} is not open")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.waiters.append(waiter)
        self._has_changes.set()
        self._has_waiters.set()
        await waiter

    async def wait_for_capacity(self) -> None:
        """Return when the unwritten changes are below their limit."""
        if not self._has_capacity.is_set():
            await self._has_capacity.wait()

    async def close(self) -> None:
        """Write the remaining changes and stop, within a bounded time."""
        self._closing = True
        self._has_changes.set()
        self._has_waiters.set()
        if self._task is not None:
            _, unfinished = await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT_S)
            if unfinished:
                logger.error("the job database was not written to the end: %s", self.write_error)
                self._task.cancel()
                await asyncio.wait({self._task})
        _resolve(self._pending.waiters, StoreUnavailable("the server is shutting down"))
        self._has_capacity.set()
        await self._client.close(_CLOSE_TIMEOUT_S)
        self._server_lock.release()

    # -- the writing task -----------------------------------------------------------------------

    async def _write_forever(self) -> None:
        while True:
            await self._has_changes.wait()
            if not self._has_waiters.is_set():
                await _wait_at_most(self._has_waiters, WRITE_DELAY_S)
            self._has_changes.clear()
            self._has_waiters.clear()
            changes, self._pending = self._pending, WriteBatch()
            if changes:
                await self._write(changes)
            if self._closing and not self._pending:
                return

    async def _write(self, changes: WriteBatch) -> None:
        """Write all changes and resolve their waiters."""
        # A job without a row number is not on the disk and needs no deletion from it.
        new_ids = [job_id for job_id in changes.jobs if job_id not in self._row_numbers]
        self._row_numbers.update(zip(new_ids, self._next_row_number, strict=False))
        batches = changes.split()
        try:
            for i, batch in enumerate(batches):
                answer = await self._write_batch(batch)
                if answer[0] != "done":
                    await self._handle_failure(batches[i:], new_ids, answer)
                    return
        except asyncio.CancelledError:
            _resolve(changes.waiters, StoreUnavailable("the server is shutting down"))
            raise
        if self.write_error is not None:
            logger.info("the job database is written again")
        self.write_error = None
        _resolve(changes.waiters)
        self._update_capacity()

    async def _handle_failure(
        self, batches: Sequence[WriteBatch], new_ids: Sequence[str], answer: Any
    ) -> None:
        """Keep unwritten batches for a retry, reject their waiters, and wait before the retry."""
        is_not_written, write_error = answer[0] == "failed", answer[2]
        if self.write_error != write_error:
            logger.error("%s", write_error)
        self.write_error = write_error
        failpoint("journal-refused")
        for batch in batches:
            self._pending.put_back(batch)
            if is_not_written or batch is not batches[0]:
                for job_id in batch.jobs.keys() & set(new_ids):
                    self._row_numbers.pop(job_id, None)
        _resolve(batches[-1].waiters, StoreUnavailable(write_error))
        # Let the waiters undo their changes before the changes are sent again.
        await asyncio.sleep(0)
        if self._client.is_connected and not self._closing:
            # A new waiter triggers a retry at once; other changes wait for the delay.
            await _wait_at_most(self._has_waiters, _RETRY_DELAY_S)
        else:
            await asyncio.sleep(_RETRY_DELAY_S)
        self._has_changes.set()

    async def _write_batch(self, batch: WriteBatch) -> Any:
        """Write a batch and return the answer, as `StoreClient.write_batch` does.

        Exceptions of any kind become an answer, so that the writing task does not end.
        """
        self._batch_number += 1
        try:
            frame = encode(self._message(batch))
            answer = await self._client.write_batch(frame, self._batch_number)
        except Exception as error:
            logger.exception("a batch could not be written")
            self._client.kill()
            return ("unsure", self._batch_number, f"{self._path.name} was not written: {error}")
        if answer[0] == "done":
            self._on_disk.update(batch.jobs)
            self._on_disk.difference_update(batch.deleted)
            for job_id in batch.deleted:
                self._row_numbers.pop(job_id, None)
        return answer

    def _message(self, batch: WriteBatch) -> Any:
        numbers, on_disk = self._row_numbers, self._on_disk
        jobs = [(job, numbers[job_id]) for job_id, job in batch.jobs.items()]
        return (
            "write",
            self._batch_number,
            # Jobs without a row number have turned out not to be on the disk.
            [(numbers[job_id],) for job_id in batch.deleted if job_id in numbers],
            [to_row(job, number) for job, number in jobs],
            [(number, job.input) for job, number in jobs if job.id not in on_disk],
            [row for job, number in jobs if (row := outdated_chunks(job, number)) is not None],
            [
                (numbers[job_id], chunk.attempt, chunk.number, chunk.value)
                for job_id, chunks in batch.chunks.items()
                for chunk in chunks
            ],
        )

    def _update_capacity(self) -> None:
        if self._pending.bytes <= MAX_PENDING_BYTES:
            self._has_capacity.set()


def _resolve(
    waiters: Sequence[asyncio.Future[None]], error: StoreUnavailable | None = None
) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


async def _wait_at_most(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, at most `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass

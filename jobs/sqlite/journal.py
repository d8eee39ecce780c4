"""The journal on SQLite, seen from the event loop: batches to the store process and back."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jobs.errors import StoreUnavailable, StoreUnusable
from jobs.failpoints import hit
from jobs.journal_port import Saved
from jobs.model import Job
from jobs.ports import Chunk
from jobs.sqlite.client import StoreLink
from jobs.sqlite.database_file import ServerLock, real_path
from jobs.sqlite.frames import encode
from jobs.sqlite.schema import from_row, outdated, to_row
from jobs.sqlite.write_batch import Pending

logger = logging.getLogger(__name__)

# What nobody waits for is written after so long, or with what somebody does.
BEHIND_S = 0.05
# More than this waits to be written: whoever streams waits as well.
MAX_PENDING_BYTES = 32_000_000
# A store process that died is started again after so long, and what failed is tried again.
_AGAIN_S = 0.5
# An earlier server's store process may take a moment to go.
_LOCK_WAIT_S = 10.0
_CLOSE_S = 10.0
# Fewer who wait are not worth two commits.
_MANY = 32
# Store processes that may die over reading the database before it is given up.
_READERS = 3


class SqliteJournal:
    """Keeps a store's jobs in an SQLite database that a process of its own writes.

    One batch is on its way at a time; what comes meanwhile is the next. A store process that dies
    is started again and given the same batch: writing it twice is writing it once. When the disk
    refuses, whoever waits is told why, and the rest is kept and tried again.

    Owned by the event loop; one task talks to the store process.
    """

    def __init__(self, path: Path, *, lock_wait_s: float = _LOCK_WAIT_S) -> None:
        self._path = path
        # Why the last batch was not written; None while all is well.
        self.trouble: str | None = None
        # Jobs on disk that cannot be read; they stay there.
        self.set_aside: list[str] = []
        real = real_path(path)
        self._server_lock = ServerLock(real)
        self._link = StoreLink(real, lock_wait_s)
        self._pending = Pending()
        # The rows of the jobs that may be on disk, and those of whom it is known that they are.
        self._numbers: dict[str, int] = {}
        self._on_disk: set[str] = set()
        self._unused = itertools.count(1)
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._batches = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """The store process, while there is one."""
        return self._link.pid

    # -- the port -------------------------------------------------------------------------------

    async def load(self) -> Iterable[Saved]:
        """Return all that was saved, oldest job first.

        Raises StoreUnusable, or StoreUnavailable where another try may succeed.
        """
        try:
            self._server_lock.take()
        except OSError as error:
            reason = error.strerror or error
            raise StoreUnusable(
                f"the job database {self._path.name} cannot be used: {reason}"
            ) from None
        for _ in range(_READERS):
            try:
                self.trouble = await self._link.connect(check=True)
                found = await self._read()
            except ConnectionError:
                self._link.cut()
            except BaseException:
                self._link.cut()
                raise
            else:
                hit("journal-loaded")
                if self.trouble is not None:
                    logger.error("%s; new jobs are refused until that is over", self.trouble)
                self._task = asyncio.create_task(self._write_forever())
                return found
        raise StoreUnavailable(
            f"the job database {self._path.name} was not read: "
            f"{_READERS} store processes have ended over it"
        )

    async def _read(self) -> list[Saved]:
        await self._link.send(encode(("load",)))
        found: list[Saved] = []
        self.set_aside = []
        last = 0
        while (message := await self._link.receive())[0] == "rows":
            for row, chunks in message[1]:
                # Also of a damaged row: its number must not be used for another job.
                last = max(last, row[0])
                try:
                    job = from_row(row)
                except (KeyError, ValueError, TypeError) as error:
                    self._set_aside(row[0], row[1], error)
                    continue
                self._numbers[job.id] = row[0]
                self._on_disk.add(job.id)
                found.append(Saved(job, [Chunk(*chunk) for chunk in chunks]))
        if message[0] != "loaded":
            raise StoreUnusable(message[1])
        self._unused = itertools.count(last + 1)
        # A job that was written when its client was told its id has a later number than others.
        found.sort(key=lambda saved: saved.job.created_at)
        return found

    def _set_aside(self, number: int, job_id: object, error: Exception) -> None:
        """Leave a damaged row where it is, and name it."""
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
        """Write a job as it is now, in place of what was known of it."""
        self._pending.save(job)
        self._wanted.set()

    def append(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Add to what a job has streamed."""
        self._pending.append(job_id, chunks)
        if self._pending.bytes > MAX_PENDING_BYTES:
            self._roomy.clear()
            self._urgent.set()
        self._wanted.set()

    def forget(self, job_id: str) -> None:
        """Remove a job and its stream."""
        self._pending.forget(job_id, on_disk=job_id in self._numbers)
        self._look_for_room()
        self._wanted.set()

    async def durable(self) -> None:
        """Return when all that came before is on disk. Raises StoreUnavailable."""
        if self._task is None or self._task.done():
            raise StoreUnavailable(f"the job database {self._path.name} is not open")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.waiters.append(waiter)
        self._wanted.set()
        self._urgent.set()
        await waiter

    async def room(self) -> None:
        """Return when not too much waits to be written."""
        if not self._roomy.is_set():
            await self._roomy.wait()

    async def close(self) -> None:
        """Write what is left and stop; bounded in time."""
        self._closing = True
        self._wanted.set()
        self._urgent.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=_CLOSE_S)
            if late:
                logger.error("the job database was not written to the end: %s", self.trouble)
                self._task.cancel()
                await asyncio.wait({self._task})
        _answer(self._pending.waiters, StoreUnavailable("the server is shutting down"))
        self._roomy.set()
        await self._link.close(_CLOSE_S)
        self._server_lock.release()

    # -- the one task ---------------------------------------------------------------------------

    async def _write_forever(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._urgent.is_set():
                await _either(self._urgent, BEHIND_S)
            self._wanted.clear()
            self._urgent.clear()
            gathered, self._pending = self._pending, Pending()
            if gathered:
                await self._write(gathered)
            if self._closing and not self._pending:
                return

    async def _write(self, gathered: Pending) -> None:
        """Have all that has gathered written, and tell those who wait how that went."""
        # What is in none of these is not on disk, and need not be removed when it is forgotten.
        new = [job_id for job_id in gathered.jobs if job_id not in self._numbers]
        self._numbers.update(zip(new, self._unused, strict=False))
        batches = gathered.split()
        try:
            for at, batch in enumerate(batches):
                answer = await self._ask(batch)
                if answer[0] != "done":
                    await self._not_written(batches[at:], new, answer)
                    return
        except asyncio.CancelledError:
            _answer(gathered.waiters, StoreUnavailable("the server is shutting down"))
            raise
        if self.trouble is not None:
            logger.info("the job database is written again")
        self.trouble = None
        self._tell(gathered.waiters)
        self._look_for_room()

    def _tell(self, waiters: Sequence[asyncio.Future[None]]) -> None:
        """Tell those who wait that what they wait for is on disk.

        Where all of them had waited for one batch, each hands in its next job only now, and disk
        and loop would take turns for ever. So half of many are told two turns of the loop later:
        what the others bring is then on its way.
        """
        alone = bool(self._pending) or len(waiters) < _MANY
        now = len(waiters) if alone else len(waiters) // 2
        _answer(waiters[:now])
        if later := waiters[now:]:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: loop.call_soon(_answer, later))

    async def _not_written(self, batches: Sequence[Pending], new: Sequence[str], said: Any) -> None:
        sure, trouble = said[0] == "failed", said[2]
        if self.trouble != trouble:
            logger.error("%s", trouble)
        self.trouble = trouble
        hit("journal-refused")
        for batch in batches:
            self._pending.put_back(batch)
            if sure or batch is not batches[0]:
                for job_id in batch.jobs.keys() & set(new):
                    self._numbers.pop(job_id, None)
        _answer(batches[-1].waiters, StoreUnavailable(trouble))
        # They undo what they had saved, before it is sent again.
        await asyncio.sleep(0)
        if self._link.up and not self._closing:
            # Whoever asks from here on is a reason to try at once; the rest can wait.
            await _either(self._urgent, _AGAIN_S)
        else:
            await asyncio.sleep(_AGAIN_S)
        self._wanted.set()

    async def _ask(self, batch: Pending) -> Any:
        """Return how writing a batch went: done, failed, or one cannot be sure.

        An exception of any kind is an answer too: the next batch must find a task to write it.
        """
        self._batches += 1
        try:
            frame = encode(self._message(batch))
            answer = await self._link.deliver(frame, self._batches)
        except Exception as error:
            logger.exception("a batch could not be written")
            self._link.cut()
            return ("unsure", self._batches, f"{self._path.name} was not written: {error}")
        if answer[0] == "done":
            self._on_disk.update(batch.jobs)
            self._on_disk.difference_update(batch.forgotten)
            for job_id in batch.forgotten:
                self._numbers.pop(job_id, None)
        return answer

    def _message(self, batch: Pending) -> Any:
        numbers, on_disk = self._numbers, self._on_disk
        jobs = [(job, numbers[job_id]) for job_id, job in batch.jobs.items()]
        return (
            "write",
            self._batches,
            # Of some it has turned out by now that they are not there.
            [(numbers[job_id],) for job_id in batch.forgotten if job_id in numbers],
            [to_row(job, number) for job, number in jobs],
            [(number, job.input) for job, number in jobs if job.id not in on_disk],
            [row for job, number in jobs if (row := outdated(job, number)) is not None],
            [
                (numbers[job_id], chunk.attempt, chunk.number, chunk.value)
                for job_id, chunks in batch.chunks.items()
                for chunk in chunks
            ],
        )

    def _look_for_room(self) -> None:
        if self._pending.bytes <= MAX_PENDING_BYTES:
            self._roomy.set()


def _answer(waiters: Sequence[asyncio.Future[None]], error: StoreUnavailable | None = None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


async def _either(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, but no longer than this."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass

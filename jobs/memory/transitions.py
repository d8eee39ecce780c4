"""Changes of state that are on disk before anybody sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jobs.failpoints import hit
from jobs.journal_port import Journal
from jobs.memory.job_record import Entry
from jobs.memory.job_table import Ledger
from jobs.model import Job, JobStatus

_Change: TypeAlias = tuple[Entry, Job]


class Changes:
    """Writes new states, waits for the disk, and only then lets them be.

    While a change is on its way the job can change in no other way: its entry is `changing`, and it
    waits in no line. When the disk does not take the change, all is as it was. It goes on when
    whoever asked for it is cancelled: a result that has been sent is a result.

    Owned by the store, which is told of each change that has taken effect.
    """

    def __init__(
        self, ledger: Ledger, journal: Journal, took_effect: Callable[[Job, Entry], None]
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._took_effect = took_effect
        self._tasks: set[asyncio.Task[None]] = set()

    async def make(self, jobs: Sequence[Job]) -> None:
        """Return when the jobs are what they are given as. Raises StoreUnavailable."""
        task = self.begin(jobs)
        if task is not None:
            await asyncio.shield(task)

    def begin(self, jobs: Sequence[Job]) -> asyncio.Task[None] | None:
        """Send off a change of jobs that are not changing.

        Returns None where it has taken effect at once: jobs that nobody was told of need no disk.
        """
        if not jobs:
            return None
        changes = [(self._ledger.entry(job.id), job) for job in jobs]
        for entry, job in changes:
            if entry.job.status is JobStatus.IN_QUEUE:
                self._ledger.endpoint(job.endpoint).line.remove(job.id)
            self._ledger.save(entry, job)
        hit("change-saved")
        if all(entry.private for entry, _ in changes):
            hit("change-private")
            self._take_effect(changes)
            return None
        task = asyncio.create_task(self._write(changes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for entry, _ in changes:
            entry.changing = task
        return task

    async def settled(self) -> None:
        """Return when nothing is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _write(self, changes: Sequence[_Change]) -> None:
        try:
            await self._journal.durable()
        except BaseException:
            for entry, _ in changes:
                entry.changing = None
                self._ledger.save(entry, entry.job)
                if entry.job.status is JobStatus.IN_QUEUE:
                    self._ledger.endpoint(entry.job.endpoint).line.push(entry.job)
            raise
        hit("change-durable")
        for entry, _ in changes:
            entry.changing = None
        self._take_effect(changes)
        hit("change-visible")

    def _take_effect(self, changes: Sequence[_Change]) -> None:
        shown_before = [(entry.job, entry) for entry, _ in changes]
        for entry, job in changes:
            self._ledger.become(entry, job)
        for before, entry in shown_before:
            self._took_effect(before, entry)

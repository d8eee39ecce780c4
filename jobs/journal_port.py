"""The port behind a store's memory: where jobs survive the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.model import Job
from jobs.ports import Chunk


@dataclass(frozen=True, slots=True)
class Saved:
    """A job found on disk, with what it had streamed."""

    job: Job
    chunks: Sequence[Chunk]


class Journal(Protocol):
    """Takes a store's changes as they happen and writes them in their order.

    `save`, `append` and `forget` never wait and never fail; `durable` is where a caller learns
    whether the disk took them. Owned by the event loop.
    """

    async def load(self) -> Iterable[Saved]:
        """Return all that was saved, oldest job first. Raises StoreUnavailable."""

    def save(self, job: Job) -> None:
        """Write a job as it is now, in place of what was known of it."""

    def append(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Add to what a job has streamed."""

    def forget(self, job_id: str) -> None:
        """Remove a job and its stream."""

    async def durable(self) -> None:
        """Return when all that came before is on disk. Raises StoreUnavailable."""

    async def room(self) -> None:
        """Return when not too much waits to be written."""

    async def close(self) -> None:
        """Write what is left and stop; bounded in time."""


class NoJournal:
    """Keeps nothing: a store that forgets its jobs with the process."""

    async def load(self) -> Iterable[Saved]:
        """Nothing was saved."""
        return ()

    def save(self, job: Job) -> None:
        """Not kept."""

    def append(self, job_id: str, chunks: Sequence[Chunk]) -> None:
        """Not kept."""

    def forget(self, job_id: str) -> None:
        """Nothing to remove."""

    async def durable(self) -> None:
        """There is nothing to wait for."""

    async def room(self) -> None:
        """There always is."""

    async def close(self) -> None:
        """Nothing is held."""

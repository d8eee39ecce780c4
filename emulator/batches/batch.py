"""A batch as clients know it, and what may become of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from handler.errors import InvalidRequest

PREFIX = "batch_"
WINDOW = "24h"


class BatchStatus(StrEnum):
    """How far a batch has come.

    validating → failed | in_progress → finalizing → completed | expired; a cancel leads from the
    first and the third by cancelling to cancelled.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing more becomes of it."""
        return self in _FINAL


_FINAL = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
# Their moments, as OpenAI names them.
_MOMENTS = (
    "created_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
# Ours alone.
_HIDDEN = ("lines", "completed", "failed", "digest", "output_expires_s", "results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The files that a batch leaves, each None where it has no lines, and what they add up to."""

    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch at one moment; what changes it returns another. Times in seconds since 1970.

    `lines` and `digest` are the input's, once it has been looked over. `results` are the ids that
    its output and error file will have, chosen before either is written: who ends a batch again,
    after a kill in the middle of it, writes the same files.
    """

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    model: str
    status: BatchStatus = BatchStatus.VALIDATING
    completion_window: str = WINDOW
    metadata: Mapping[str, str] | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    lines: int = 0
    completed: int = 0
    failed: int = 0
    digest: str = ""
    output_expires_s: int | None = None
    results: tuple[str, str] | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StoredBatch:
        """Return the batch that `record` was made of. Raises TypeError, ValueError or KeyError."""
        given = dict(record)
        given["status"] = BatchStatus(given["status"])
        if given["results"] is not None:
            output, error = given["results"]
            given["results"] = (output, error)
        batch = cls(**given)
        if not all(isinstance(text, str) for text in (batch.id, batch.input_file_id, batch.digest)):
            raise TypeError("a text has another type")
        numbers = (batch.expires_at, batch.lines, *(getattr(batch, name) for name in _MOMENTS))
        if not all(number is None or type(number) is int for number in numbers):
            raise TypeError("a number has another type")
        return batch

    def record(self) -> dict[str, Any]:
        """Return all of it, to be kept as JSON."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """Return the batch as OpenAI tells of one."""
        known = asdict(self)
        counts = {"total": self.lines, "completed": self.completed, "failed": self.failed}
        for name in _HIDDEN:
            del known[name]
        return {"object": "batch", **known, "request_counts": counts}

    def begin(self, digest: str, lines: int, now: int) -> StoredBatch:
        """Return it with its input found good; one that was cancelled meanwhile stays so."""
        if self.status is not BatchStatus.VALIDATING:
            return self
        return self._at("in_progress", now, digest=digest, lines=lines)

    def refuse(self, problems: Iterable[tuple[int | None, str]], now: int) -> StoredBatch:
        """Return it failed, for what is wrong, by lines; one that was cancelled stays so."""
        if self.status is not BatchStatus.VALIDATING:
            return self
        return self._failed("invalid_input", problems, now)

    def lose(self, message: str, now: int) -> StoredBatch:
        """Return it failed, for what it needs is there no more, however far it had come."""
        return self._failed("input_lost", [(None, message)], now)

    def _failed(
        self, code: str, problems: Iterable[tuple[int | None, str]], now: int
    ) -> StoredBatch:
        told = [
            {"code": code, "line": line, "message": message, "param": None}
            for line, message in problems
        ]
        return self._at("failed", now, results=None, errors={"object": "list", "data": told})

    def cancel(self, now: int) -> StoredBatch:
        """Return it on the way to be cancelled. Raises InvalidRequest where it is too late."""
        if self.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return self
        if self.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            raise InvalidRequest(f"the batch is {self.status.value} and cannot be cancelled")
        return self._at("cancelling", now)

    def finalize(self, results: tuple[str, str], now: int) -> StoredBatch:
        """Return it with nothing more to be answered, and ids for what it leaves."""
        known = replace(self, results=self.results or results)
        return known if self.status is not BatchStatus.IN_PROGRESS else known._at("finalizing", now)

    def end(self, found: Results, now: int) -> StoredBatch:
        """Return it at its end; lines without an answer tell that it was cancelled or expired."""
        how = "expired" if found.completed + found.failed < self.lines else "completed"
        if self.status is BatchStatus.CANCELLING:
            how = "cancelled"
        return self._at(how, now, results=None, **asdict(found))

    @property
    def changed_at(self) -> int:
        """When it came to its status."""
        moments: list[int | None] = [getattr(self, name) for name in _MOMENTS]
        return max(moment for moment in moments if moment is not None)

    def _at(self, status: str, now: int, **changes: Any) -> StoredBatch:
        # The clock may have been put back: no moment comes before the one that it follows.
        changes |= {f"{status}_at": max(now, self.changed_at)}
        return replace(self, status=BatchStatus(status), **changes)

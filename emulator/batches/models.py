"""The stored state of a batch and of a file, and the status changes of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from handler.errors import InvalidRequest

BATCH_ID_PREFIX = "batch_"
FILE_ID_PREFIX = "file-"
COMPLETION_WINDOW = "24h"
# The purpose of an uploaded file, and of the files that a batch writes.
INPUT_PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"


class BatchStatus(StrEnum):
    """The status of a batch.

    validating → failed | in_progress → finalizing → completed | expired. A batch that is cancelled
    while it is validating or in progress goes through cancelling to cancelled.
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
    def is_final(self) -> bool:
        """Whether the status is terminal."""
        return self in _FINAL


_FINAL = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
# The times of the status changes, as OpenAI names them.
_STATUS_TIMES = (
    "created_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
# Fields that are not part of OpenAI's batch object.
_INTERNAL_FIELDS = ("lines", "completed", "failed", "digest", "output_expires_s", "results")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The line counts, result files and usage of an ended batch; an empty file has the id None."""

    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """An immutable state of a batch; methods that change it return a new state.

    Times are in seconds since 1970. `lines` and `digest` describe the input once it is validated.
    `results` are the ids of the output file and the error file. They are chosen before either file
    is written, so that a batch that is finished again after a kill writes the same files.
    """

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    model: str
    status: BatchStatus = BatchStatus.VALIDATING
    completion_window: str = COMPLETION_WINDOW
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
        """Return the batch of a stored record. Raises TypeError, ValueError or KeyError."""
        fields = dict(record)
        fields["status"] = BatchStatus(fields["status"])
        if fields["results"] is not None:
            output_id, error_id = fields["results"]
            fields["results"] = (output_id, error_id)
        batch = cls(**fields)
        if not all(isinstance(text, str) for text in (batch.id, batch.input_file_id, batch.digest)):
            raise TypeError("a text has another type")
        numbers = (batch.expires_at, batch.lines, *(getattr(batch, name) for name in _STATUS_TIMES))
        if not all(number is None or type(number) is int for number in numbers):
            raise TypeError("a number has another type")
        return batch

    def to_record(self) -> dict[str, Any]:
        """Return all fields, to be stored as JSON."""
        return asdict(self)

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI batch object."""
        fields = asdict(self)
        counts = {"total": self.lines, "completed": self.completed, "failed": self.failed}
        for name in _INTERNAL_FIELDS:
            del fields[name]
        return {"object": "batch", **fields, "request_counts": counts}

    def start(self, digest: str, lines: int, now: int) -> StoredBatch:
        """Return the batch in progress, with a valid input; a cancelled batch stays cancelled."""
        if self.status is not BatchStatus.VALIDATING:
            return self
        return self._enter_status("in_progress", now, digest=digest, lines=lines)

    def fail_validation(self, problems: Iterable[tuple[int | None, str]], now: int) -> StoredBatch:
        """Return the batch failed, with its problems by line; a cancelled batch stays cancelled."""
        if self.status is not BatchStatus.VALIDATING:
            return self
        return self._fail("invalid_input", problems, now)

    def fail_input_lost(self, message: str, now: int) -> StoredBatch:
        """Return the batch failed because its input or journal is lost, whatever its status."""
        return self._fail("input_lost", [(None, message)], now)

    def _fail(self, code: str, problems: Iterable[tuple[int | None, str]], now: int) -> StoredBatch:
        errors = [
            {"code": code, "line": line, "message": message, "param": None}
            for line, message in problems
        ]
        return self._enter_status(
            "failed", now, results=None, errors={"object": "list", "data": errors}
        )

    def cancel(self, now: int) -> StoredBatch:
        """Return the batch cancelling. Raises InvalidRequest if it is finalizing or has ended."""
        if self.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return self
        if self.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            raise InvalidRequest(f"the batch is {self.status.value} and cannot be cancelled")
        return self._enter_status("cancelling", now)

    def finalize(self, results: tuple[str, str], now: int) -> StoredBatch:
        """Return the batch finalizing: its lines are done, and its result files have ids."""
        batch = replace(self, results=self.results or results)
        if self.status is not BatchStatus.IN_PROGRESS:
            return batch
        return batch._enter_status("finalizing", now)

    def finish(self, result: BatchResult, now: int) -> StoredBatch:
        """Return the batch ended; a batch with unanswered lines was cancelled or has expired."""
        status = "expired" if result.completed + result.failed < self.lines else "completed"
        if self.status is BatchStatus.CANCELLING:
            status = "cancelled"
        return self._enter_status(status, now, results=None, **asdict(result))

    @property
    def changed_at(self) -> int:
        """The time of the last status change."""
        times: list[int | None] = [getattr(self, name) for name in _STATUS_TIMES]
        return max(time for time in times if time is not None)

    def _enter_status(self, status: str, now: int, **changes: Any) -> StoredBatch:
        # The clock may have been put back: no status time is before the previous one.
        changes |= {f"{status}_at": max(now, self.changed_at)}
        return replace(self, status=BatchStatus(status), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The metadata of a file; times are in whole seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StoredFile:
        """Return the file of a stored record. Raises TypeError if a field is missing or wrong."""
        file = cls(**record)
        texts = (file.id, file.filename, file.purpose)
        numbers = (file.bytes, file.created_at, 0 if file.expires_at is None else file.expires_at)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text has another type")
        if not all(type(number) is int for number in numbers):
            raise TypeError("a number has another type")
        return file

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI file object."""
        # `processed`: a file is validated before it gets its id.
        return {"object": "file", "status": "processed", "status_details": None, **asdict(self)}

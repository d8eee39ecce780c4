"""Why a user's handler did not start, for the log, the console, and the jobs that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.autoscaling.worker_exit import last_printed_line
from emulator.runpod.job_response import worker_key
from jobs import JobStore

_MAX_OUTPUT_CHARS = 8_000
_LEASE_S = 60.0
# With these, code fails the same way wherever it runs. Others may come from a port, a lock file or
# a GPU that another worker has.
_ERRORS_OF_CODE = (
    "SyntaxError",
    "IndentationError",
    "TabError",
    "NameError",
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
    "TypeError",
    "KeyError",
    "IndexError",
    "FileNotFoundError",
)
_JOBS_PER_CALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """A worker that ended before it asked for a job: the reason, and what it had printed.

    `program` is the handler's file or the image that it ran.
    """

    worker: str
    program: str
    reason: str
    output: str

    @property
    def error(self) -> str:
        """The error of a job that is answered with this failure."""
        text = f"{self.program} did not start: {self.reason}"
        return f"{text}\n\n{self.output}" if self.output else text

    def to_wire(self) -> dict[str, Any]:
        """Return the failure as JSON, for `/health` and the console."""
        return {"worker": self.worker, "reason": self.reason, "output": self.output}


def build_start_failure(
    worker: str, program: str, reason: str, output: Sequence[str]
) -> StartFailure:
    """Return the failure of a worker; `reason` is a predicate, `output` are its last lines."""
    return StartFailure(
        worker=worker,
        program=program,
        reason=f"it {reason}",
        output="\n".join(output)[-_MAX_OUTPUT_CHARS:],
    )


def is_fault_of_code(code: int, output: Sequence[str]) -> bool:
    """Return whether a start failed for a reason that has nothing to do with other workers."""
    return code == 0 or last_printed_line(output).partition(":")[0] in _ERRORS_OF_CODE


async def fail_queued_jobs(store: JobStore, endpoint: str, failure: StartFailure) -> int:
    """End all queued jobs of an endpoint with the failure; return how many.

    They are leased to the worker that failed, so they go back to the queue if the server ends now.
    Raises StoreUnavailable.
    """
    count = 0
    key = worker_key(endpoint, failure.worker)
    while jobs := await store.receive(endpoint, key, lease_s=_LEASE_S, limit=_JOBS_PER_CALL):
        for job in jobs:
            count += await store.ack(job.id, job.attempt, error=failure.error)
    return count

"""The leases of this process and their receipt handles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from jobs.model import Job

# More than a process loses while a worker may still run a lost job without knowing.
_MAX_LOST = 10_000


@dataclass(slots=True, eq=False)
class Lease:
    """A leased message; `expires_at` is by the monotonic clock of this process."""

    job: Job
    receipt_handle: str
    expires_at: float


class SqsLeases:
    """The leases of one process, one for each message; owned by one event loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._leases: dict[str, Lease] = {}
        self._lost: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def get(self, job_id: str, attempt: int) -> Lease | None:
        """Return a lease that has not expired by this process's clock."""
        lease = self._leases.get(job_id)
        if lease is None or lease.job.attempt != attempt or self._has_expired(lease):
            return None
        return lease

    def add(self, lease: Lease) -> None:
        """Add a lease, replacing an earlier one of the same message."""
        self._leases[lease.job.id] = lease

    def renew(self, job_id: str, receipt_handle: str, expires_at: float) -> bool:
        """Update the handle of a valid lease; return False if there is no such lease."""
        lease = self._leases.get(job_id)
        if lease is None or self._has_expired(lease):
            return False
        lease.receipt_handle = receipt_handle
        lease.expires_at = max(lease.expires_at, expires_at)
        return True

    def remove(self, lease: Lease) -> None:
        """Remove a lease unless a later one has replaced it."""
        if self._leases.get(lease.job.id) is lease:
            del self._leases[lease.job.id]

    def has_lost(self, worker_id: str, job_id: str) -> bool:
        """Return whether a worker had a lease of this job that has expired."""
        return (worker_id, job_id) in self._lost

    def _has_expired(self, lease: Lease) -> bool:
        if self._monotonic() < lease.expires_at:
            return False
        self.remove(lease)
        self._lost[lease.job.worker_id, lease.job.id] = None
        while len(self._lost) > _MAX_LOST:
            self._lost.popitem(last=False)
        return True

"""Which messages this process has, and under which receipt handles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from jobs.model import Job

# More than any process loses in the time in which it may not know.
_LOST = 10_000


@dataclass(slots=True, eq=False)
class Lease:
    """A message that was given out; `until` is by the monotonic clock of this process."""

    job: Job
    handle: str
    until: float


class SqsLeases:
    """The leases of one process, one for each message; owned by one event loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._leases: dict[str, Lease] = {}
        self._lost: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def get(self, job_id: str, attempt: int) -> Lease | None:
        """Return a lease that is not over, by this process's clock."""
        lease = self._leases.get(job_id)
        if lease is None or lease.job.attempt != attempt or self._over(lease):
            return None
        return lease

    def begin(self, lease: Lease) -> None:
        """Take down a lease in place of an earlier one of the same message."""
        self._leases[lease.job.id] = lease

    def renew(self, job_id: str, handle: str, until: float) -> bool:
        """Give a lease that still holds a newer handle; False where there is none."""
        lease = self._leases.get(job_id)
        if lease is None or self._over(lease):
            return False
        lease.handle, lease.until = handle, max(lease.until, until)
        return True

    def end(self, lease: Lease) -> None:
        """Forget a lease, if a later one has not taken its place."""
        if self._leases.get(lease.job.id) is lease:
            del self._leases[lease.job.id]

    def has_lost(self, worker_id: str, job_id: str) -> bool:
        """Whether a worker had this job until its lease was over."""
        return (worker_id, job_id) in self._lost

    def _over(self, lease: Lease) -> bool:
        if self._monotonic() < lease.until:
            return False
        self.end(lease)
        self._lost[lease.job.worker_id, lease.job.id] = None
        while len(self._lost) > _LOST:
            self._lost.popitem(last=False)
        return True

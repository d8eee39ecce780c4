"""Jobs as the platform keeps them: states, times, and the store they wait in."""

from jobs.job import Job, JobStatus
from jobs.memory import MemoryJobStore

__all__ = ["Job", "JobStatus", "MemoryJobStore"]

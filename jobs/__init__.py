"""Jobs as the platform keeps them: states, leases, the store they wait in, the disk behind it."""

from jobs.errors import JobsError, NotRetryable, StoreFull, StoreUnavailable
from jobs.job import Job, JobStatus, Json, NewJob, Policy
from jobs.journal import Journal, NoJournal
from jobs.limits import Limits
from jobs.memory import MemoryJobStore
from jobs.sqlite_journal import SqliteJournal
from jobs.store import Chunk, JobQueue, JobStore, Stats

__all__ = [
    "Chunk",
    "Job",
    "JobQueue",
    "JobStatus",
    "JobStore",
    "JobsError",
    "Journal",
    "Json",
    "Limits",
    "MemoryJobStore",
    "NewJob",
    "NoJournal",
    "NotRetryable",
    "Policy",
    "SqliteJournal",
    "Stats",
    "StoreFull",
    "StoreUnavailable",
]

"""Job queue and job store: jobs, leases, and the journal that makes jobs survive a restart."""

from jobs.errors import JobsError, NotRetryable, StoreFull, StoreUnavailable, StoreUnusable
from jobs.memory.store import MemoryJobStore
from jobs.model import Job, JobStatus, Json, Limits, NewJob, Policy
from jobs.ports import Chunk, JobQueue, JobStore, Journal, NoJournal, QueueStats
from jobs.sqlite.journal import SqliteJournal

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
    "QueueStats",
    "SqliteJournal",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnusable",
]

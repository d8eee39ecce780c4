"""Job queue and job store: jobs, leases, and the journal that makes jobs survive a restart.

Names are imported on first use. The store process then starts in half the time, because it does not
load the modules that only its clients need, and a server waits for it at startup.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.errors import JobsError, NotRetryable, StoreFull, StoreUnavailable, StoreUnusable
    from jobs.memory.store import MemoryJobStore
    from jobs.model import Job, JobStatus, Json, Limits, NewJob, Policy
    from jobs.ports import Chunk, JobQueue, JobStore, Journal, NoJournal, QueueStats
    from jobs.sqlite.journal import SqliteJournal

_NAMES = {
    "errors": ("JobsError", "NotRetryable", "StoreFull", "StoreUnavailable", "StoreUnusable"),
    "model": ("Job", "JobStatus", "Json", "Limits", "NewJob", "Policy"),
    "memory.store": ("MemoryJobStore",),
    "ports": ("Chunk", "Journal", "JobQueue", "JobStore", "NoJournal", "QueueStats"),
    "sqlite.journal": ("SqliteJournal",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """Import the module of a public name and cache the name here. Raises AttributeError."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value

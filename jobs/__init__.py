"""Jobs as the platform keeps them: states, leases, the store they wait in, the disk behind it.

Each name is imported when it is first asked for: the store process begins in half the time without
what only those need who ask it, and servers wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.errors import JobsError, NotRetryable, StoreFull, StoreUnavailable, StoreUnusable
    from jobs.journal_port import Journal, NoJournal
    from jobs.limits import Limits
    from jobs.memory.store import MemoryJobStore
    from jobs.model import Job, JobStatus, Json, NewJob, Policy
    from jobs.ports import Chunk, JobQueue, JobStore, Stats
    from jobs.sqlite.journal import SqliteJournal

_NAMES = {
    "errors": ("JobsError", "NotRetryable", "StoreFull", "StoreUnavailable", "StoreUnusable"),
    "model": ("Job", "JobStatus", "Json", "NewJob", "Policy"),
    "journal_port": ("Journal", "NoJournal"),
    "limits": ("Limits",),
    "memory.store": ("MemoryJobStore",),
    "sqlite.journal": ("SqliteJournal",),
    "ports": ("Chunk", "JobQueue", "JobStore", "Stats"),
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
    "SqliteJournal",
    "Stats",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnusable",
]


def __getattr__(name: str) -> Any:
    """Import a name's module and keep the name here. Raises AttributeError: there is no such."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return found

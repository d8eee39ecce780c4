"""Jobs as rows of SQLite."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import orjson

from jobs.job import Job, JobStatus, Policy

VERSION = 1

# Input and output are apart from the rest, which is written again with each change.
CREATE = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY,
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    state TEXT NOT NULL,
    input BLOB,
    output BLOB
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    job_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (job_id, attempt, number)
) STRICT, WITHOUT ROWID;
"""
SAVE = """
INSERT INTO jobs (id, endpoint, status, created_at, state, input, output)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    status = excluded.status,
    state = excluded.state,
    input = coalesce(excluded.input, input),
    output = excluded.output
"""
APPEND = "INSERT OR REPLACE INTO chunks (job_id, attempt, number, value) VALUES (?, ?, ?, ?)"
FORGET_OLD = "DELETE FROM chunks WHERE job_id = ? AND attempt < ?"
FORGET = "DELETE FROM jobs WHERE id = ?"
FORGET_CHUNKS = "DELETE FROM chunks WHERE job_id = ?"
JOBS = "SELECT id, endpoint, status, created_at, state, input, output FROM jobs ORDER BY created_at"
CHUNKS = "SELECT attempt, number, value FROM chunks WHERE job_id = ? ORDER BY attempt, number"

# (id, endpoint, status, created_at, state, input or None for the one that is there, output)
Row = tuple[str, str, str, float, str, bytes | None, bytes | None]

_STATE = (
    "sync",
    "webhook",
    "attempt",
    "losses",
    "retries",
    "worker_id",
    "queued_at",
    "started_at",
    "ended_at",
    "error",
    "webhook_sent",
)


def to_row(job: Job, *, with_input: bool) -> Row:
    """Return a job as a row; `with_input` the first time."""
    policy = job.policy
    state: dict[str, Any] = {name: getattr(job, name) for name in _STATE}
    state["policy"] = [policy.execution_timeout_ms, policy.ttl_ms, policy.low_priority]
    # Text, so that the table can be read with any tool.
    state["extra"] = job.extra.decode(errors="replace")
    state["progress"] = job.progress.decode(errors="replace")
    return (
        job.id,
        job.endpoint.encode(errors="replace").decode(),
        job.status.value,
        job.created_at,
        _text(state),
        job.input if with_input else None,
        job.output,
    )


def _text(state: dict[str, Any]) -> str:
    try:
        return orjson.dumps(state).decode()
    except TypeError:
        # Half a surrogate pair: a job that cannot be written would keep all others from it too.
        return json.dumps(state).encode(errors="replace").decode()


def outdated(job: Job) -> tuple[str, int] | None:
    """Return a job and the first attempt whose stream is still of use; None where all is."""
    waits = job.status is JobStatus.IN_QUEUE
    first = job.attempt + waits
    return (job.id, first) if first > 1 else None


def from_row(row: Row) -> Job:
    """Return the job of a row. Raises ValueError or KeyError for what no job was written as."""
    job_id, endpoint, status, created_at, text, job_input, output = row
    state = _state(text)
    execution_timeout_ms, ttl_ms, low_priority = state["policy"]
    return Job(
        id=job_id,
        endpoint=endpoint,
        input=job_input or b"null",
        created_at=created_at,
        status=JobStatus(status),
        output=output,
        policy=Policy(
            execution_timeout_ms=execution_timeout_ms, ttl_ms=ttl_ms, low_priority=low_priority
        ),
        extra=state["extra"].encode(),
        progress=state["progress"].encode(),
        **{name: state[name] for name in _STATE},
    )


def _state(text: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        state = json.loads(text)
    return state


def open_database(path: str, busy_s: float, *, check: bool) -> sqlite3.Connection:
    """Open or create the database; `check` reads all of it once.

    FULL: a commit is on the disk when it returns, not only in the system's memory, so nothing that
    was acknowledged is lost with the power either.

    Raises:
        sqlite3.Error: it cannot be opened, is damaged, or is not a database.
        ValueError: a later version wrote it.
    """
    database = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        database.close()
        raise ValueError(f"it has version {version}, and this server knows {VERSION}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if check:
        (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            database.close()
            raise sqlite3.DatabaseError(f"it is damaged: {said}")
    database.executescript(CREATE)
    database.execute(f"PRAGMA user_version = {VERSION}")
    return database

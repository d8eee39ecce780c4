"""Migration of databases of earlier versions."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from jobs import Chunk, JobStatus, StoreUnavailable
from jobs.sqlite.schema import SCHEMA_VERSION
from tests.integration.jobs.stores import Stores, job_of, new, take

# The schema of version 1.
_TABLES = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    state TEXT NOT NULL,
    input BLOB,
    output BLOB
) STRICT, WITHOUT ROWID;
CREATE TABLE chunks (
    job_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (job_id, attempt, number)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_STATE = {
    "sync": False,
    "webhook": None,
    "attempt": 0,
    "losses": 0,
    "retries": 0,
    "worker_id": None,
    "queued_at": 1_700_000_000.0,
    "started_at": None,
    "ended_at": None,
    "error": None,
    "webhook_sent": False,
    "policy": [600_000, 86_400_000, False],
    "extra": "",
    "progress": "",
}
_ENDED = {**_STATE, "attempt": 1, "started_at": 1_700_000_000.0, "ended_at": 1_700_000_000.0}
# The younger job has the smaller id.
_JOBS = [
    ("a", "e", "COMPLETED", 1_700_000_000.0, json.dumps(_ENDED), b'"a"', b"1"),
    ("b", "e", "IN_QUEUE", 1_699_999_999.0, json.dumps(_STATE), b'"b"', None),
]
_CHUNKS = [("a", 1, 1, b"one"), ("a", 1, 2, b"two")]


@pytest.fixture
def old_database(disk: Stores) -> Path:
    """A database of version 1: a job that waits, and one that has ended with two chunks."""
    with contextlib.closing(sqlite3.connect(disk.path)) as database:
        database.executescript(_TABLES)
        database.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", _JOBS)
        database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?)", _CHUNKS)
        database.commit()
    return disk.path


async def test_database_of_version_1_is_migrated(disk: Stores, old_database: Path) -> None:
    store = await disk.open()
    ended = await job_of(store, "a")
    assert (ended.status, ended.input, ended.output) == (JobStatus.COMPLETED, b'"a"', b"1")
    assert await store.read_chunks("a", (0, 0), 0) == [Chunk(1, 1, b"one"), Chunk(1, 2, b"two")]
    fresh = await store.enqueue(new(1))
    waiting = await take(store)
    assert (waiting.id, waiting.input) == ("b", b'"b"')
    await store.ack("b", 1, output=b"2")
    await disk.close()
    reopened = await disk.open()
    assert {
        job.id: (job.status, job.output) for job in await reopened.list_recent_jobs("e", 10)
    } == {
        "a": (JobStatus.COMPLETED, b"1"),
        "b": (JobStatus.COMPLETED, b"2"),
        fresh.id: (JobStatus.IN_QUEUE, None),
    }
    assert len(await reopened.read_chunks("a", (0, 0), 0)) == 2
    await disk.close()
    with contextlib.closing(sqlite3.connect(old_database)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert {name for (name,) in tables} == {"jobs", "inputs", "chunks"}


async def test_failed_migration_leaves_the_database_unchanged(
    disk: Stores, old_database: Path
) -> None:
    """The migration fails at its end, after the jobs were copied."""
    with contextlib.closing(sqlite3.connect(old_database)) as database:
        database.execute("ALTER TABLE chunks RENAME COLUMN value TO something_else")
        before = database.execute("SELECT * FROM jobs").fetchall()
    with pytest.raises(StoreUnavailable, match="no such column: value"):
        await disk.open()
    with contextlib.closing(sqlite3.connect(old_database)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        assert database.execute("SELECT * FROM jobs").fetchall() == before
        assert database.execute("SELECT count(*) FROM chunks").fetchone() == (2,)

"""The SQLite schema of jobs, and conversion between jobs and rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import orjson

from jobs.model import Job, JobStatus, Policy

SCHEMA_VERSION = 2

# The primary key is a sequence number from the journal. Rows that are written together are then in
# few pages; with the random job ids as keys each row would be in another page (four times the
# time, fifteen times the bytes). Inputs have a table of their own because they never change, while
# the rest of a job is written again with each change.
CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    state TEXT NOT NULL,
    output BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS inputs (
    job INTEGER PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS chunks (
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (job, attempt, number)
) STRICT, WITHOUT ROWID;
"""
# The columns by which a database is recognised as ours.
_COMMON_COLUMNS = {
    ("jobs", column) for column in ("id", "endpoint", "status", "created_at", "state", "output")
} | {("chunks", column) for column in ("attempt", "number")}
UPSERT_JOB = """
INSERT INTO jobs (number, id, endpoint, status, created_at, state, output)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET
    status = excluded.status,
    state = excluded.state,
    output = excluded.output
"""
UPSERT_INPUT = "INSERT OR REPLACE INTO inputs (job, value) VALUES (?, ?)"
UPSERT_CHUNK = "INSERT OR REPLACE INTO chunks (job, attempt, number, value) VALUES (?, ?, ?, ?)"
DELETE_OLD_CHUNKS = "DELETE FROM chunks WHERE job = ? AND attempt < ?"
DELETE_JOB = "DELETE FROM jobs WHERE number = ?"
DELETE_INPUT = "DELETE FROM inputs WHERE job = ?"
DELETE_CHUNKS = "DELETE FROM chunks WHERE job = ?"
SELECT_JOBS = (
    "SELECT number, id, endpoint, status, created_at, state, output, value FROM jobs "
    "LEFT JOIN inputs ON job = number ORDER BY number"
)
SELECT_CHUNKS = "SELECT attempt, number, value FROM chunks WHERE job = ? ORDER BY attempt, number"

# (number, id, endpoint, status, created_at, state, output), and when read also the input.
Row = tuple[int, str, str, str, float, str, bytes | None]
RowWithInput = tuple[int, str, str, str, float, str, bytes | None, bytes | None]

# The fields of a job that are stored unchanged, under their own names, in the `state` column.
_STATE_FIELDS = (
    "sync",
    "webhook",
    "attempt",
    "retries",
    "worker_id",
    "queued_at",
    "started_at",
    "ended_at",
    "error",
    "webhook_sent",
)


def to_row(job: Job, number: int) -> Row:
    """Convert a job to the row with this number."""
    policy = job.policy
    state: dict[str, Any] = {name: getattr(job, name) for name in _STATE_FIELDS}
    state["losses"] = job.lost_attempts
    state["policy"] = [policy.execution_timeout_ms, policy.ttl_ms, policy.low_priority]
    # As text instead of bytes, so that the table can be read with any tool.
    state["extra"] = job.extra.decode(errors="replace")
    state["progress"] = job.progress.decode(errors="replace")
    return (
        number,
        job.id,
        job.endpoint.encode(errors="replace").decode(),
        job.status.value,
        job.created_at,
        _encode_state(state),
        job.output,
    )


def _encode_state(state: dict[str, Any]) -> str:
    try:
        return orjson.dumps(state).decode()
    except TypeError:
        # orjson refuses a lone surrogate. A job that cannot be written would block all others.
        return json.dumps(state).encode(errors="replace").decode()


def outdated_chunks(job: Job, number: int) -> tuple[int, int] | None:
    """Return the job's row number and the first attempt whose chunks are kept; None to keep all."""
    is_waiting = job.status is JobStatus.IN_QUEUE
    first_kept = job.attempt + is_waiting
    return (number, first_kept) if first_kept > 1 else None


_NUMBER = (int, float)
_OPTIONAL_NUMBER = (int, float, type(None))
_OPTIONAL_TEXT = (str, type(None))
# The allowed types of each value in the `state` column.
_STATE_TYPES: dict[str, tuple[type, ...]] = {
    "sync": (bool,),
    "webhook": _OPTIONAL_TEXT,
    "attempt": (int,),
    "losses": (int,),
    "retries": (int,),
    "worker_id": _OPTIONAL_TEXT,
    "queued_at": _NUMBER,
    "started_at": _OPTIONAL_NUMBER,
    "ended_at": _OPTIONAL_NUMBER,
    "error": _OPTIONAL_TEXT,
    "webhook_sent": (bool,),
    "policy": (list,),
    "extra": (str,),
    "progress": (str,),
}


def from_row(row: RowWithInput) -> Job:
    """Convert a row to a job. Raises ValueError, KeyError or TypeError if the row is damaged."""
    _, job_id, endpoint, status, created_at, text, output, job_input = row
    # The store process returns text that is not UTF-8 as bytes.
    if not (isinstance(job_id, str) and isinstance(endpoint, str) and isinstance(text, str)):
        raise ValueError("a text in it is not UTF-8")
    state = _decode_state(text)
    for name, types in _STATE_TYPES.items():
        if type(state[name]) not in types:
            raise ValueError(f"its {name} is a {type(state[name]).__name__}")
    execution_timeout_ms, ttl_ms, low_priority = state["policy"]
    if type(job_input) is not bytes or type(output) not in (bytes, type(None)):
        raise ValueError("its input is missing, or its output has another type")
    if type(execution_timeout_ms) is not int or type(ttl_ms) is not int:
        raise ValueError("its policy is not made of numbers")
    return Job(
        id=job_id,
        endpoint=endpoint,
        input=job_input,
        created_at=created_at,
        status=JobStatus(status),
        output=output,
        policy=Policy(
            execution_timeout_ms=execution_timeout_ms, ttl_ms=ttl_ms, low_priority=low_priority
        ),
        extra=state["extra"].encode(),
        progress=state["progress"].encode(),
        lost_attempts=state["losses"],
        **{name: state[name] for name in _STATE_FIELDS},
    )


def _decode_state(text: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        state = json.loads(text)
    return state


class TablesNotCreated(sqlite3.OperationalError):
    """The database is new, and its tables could not be created because the disk is full."""


def open_database(
    path: str,
    busy_s: float,
    *,
    check: bool,
    exclusive: bool = False,
    on_recognised: Callable[[], object] = lambda: None,
) -> sqlite3.Connection:
    """Open or create the database; `check` verifies its integrity first.

    With `synchronous = FULL` a commit is on the disk when it returns, and not only in the memory of
    the system, so that acknowledged jobs survive a power failure. `exclusive` keeps the index of
    the log in memory instead of in a file, which cannot be created on a full disk. `on_recognised`
    is called before the first change, when the database is known to be empty or ours.

    Raises:
        TablesNotCreated: the database is new and cannot be created now.
        sqlite3.Error: it cannot be opened, is damaged, or is not a database.
        ValueError: another version of this program, or another program, wrote it.
    """
    database = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
    try:
        _check_ownership(database, exclusive=exclusive)
        on_recognised()
        _initialise(database, check=check)
    except (sqlite3.OperationalError, ValueError, OSError):
        database.close()
        raise
    # A damaged database stays open: closing it would checkpoint the log and remove it.
    return database


def is_full(error: sqlite3.Error) -> bool:
    """Return whether an error may be caused by a full disk."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
    )


def _check_ownership(database: sqlite3.Connection, *, exclusive: bool) -> None:
    """Check, without changes, that a database is empty or ours. Raises ValueError."""
    if exclusive:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
    version = _version(database)
    columns = {
        (table, column)
        for table, column in database.execute(
            "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        )
    }
    if columns and not (version and columns >= _COMMON_COLUMNS):
        # The version alone proves nothing: other programs set `user_version` too.
        raise ValueError("another program created it")
    if version not in (0, SCHEMA_VERSION):
        raise ValueError(f"it has version {version}, and this server knows {SCHEMA_VERSION}")


def _version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def _initialise(database: sqlite3.Connection, *, check: bool) -> None:
    version = _version(database)
    try:
        _create_tables(database, version, check=check)
    except sqlite3.OperationalError as error:
        if version == 0 and is_full(error):
            raise TablesNotCreated(str(error)) from error
        raise


def _create_tables(database: sqlite3.Connection, version: int, *, check: bool) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if check:
        (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {result}")
    if version == SCHEMA_VERSION:
        # Write nothing: this must succeed on a full disk.
        return
    set_version = f"PRAGMA user_version = {SCHEMA_VERSION};"
    # In one transaction: a process that is killed leaves the previous state.
    database.executescript(f"BEGIN IMMEDIATE;{CREATE_TABLES}{set_version}COMMIT;")

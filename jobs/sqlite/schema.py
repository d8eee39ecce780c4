"""Jobs as rows of SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import orjson

from jobs.model import Job, JobStatus, Policy

VERSION = 2

# Rows are found by numbers that the journal gives away in turn: what is written together is then in
# few pages, where random ids would have each in a page of its own (four times the time, fifteen
# times the bytes). Inputs never change, and have a table to themselves: the rest of a job is
# written again with each change.
CREATE = """
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
# The columns that every version has.
_COLUMNS = {
    ("jobs", column) for column in ("id", "endpoint", "status", "created_at", "state", "output")
} | {("chunks", column) for column in ("attempt", "number")}
# Of version 1, whose rows had the jobs' ids for keys.
_TAKE_ASIDE = """
ALTER TABLE jobs RENAME TO old_jobs;
ALTER TABLE chunks RENAME TO old_chunks;
"""
_TAKE_OVER = """
INSERT INTO jobs (id, endpoint, status, created_at, state, output)
SELECT id, endpoint, status, created_at, state, output FROM old_jobs;
INSERT INTO inputs (job, value)
SELECT jobs.number, input FROM old_jobs JOIN jobs USING (id) WHERE input IS NOT NULL;
INSERT INTO chunks (job, attempt, number, value)
SELECT jobs.number, attempt, old_chunks.number, value
FROM old_chunks JOIN jobs ON jobs.id = old_chunks.job_id;
DROP TABLE old_jobs;
DROP TABLE old_chunks;
"""
SAVE = """
INSERT INTO jobs (number, id, endpoint, status, created_at, state, output)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET
    status = excluded.status,
    state = excluded.state,
    output = excluded.output
"""
SAVE_INPUT = "INSERT OR REPLACE INTO inputs (job, value) VALUES (?, ?)"
APPEND = "INSERT OR REPLACE INTO chunks (job, attempt, number, value) VALUES (?, ?, ?, ?)"
FORGET_OLD = "DELETE FROM chunks WHERE job = ? AND attempt < ?"
FORGET = "DELETE FROM jobs WHERE number = ?"
FORGET_INPUT = "DELETE FROM inputs WHERE job = ?"
FORGET_CHUNKS = "DELETE FROM chunks WHERE job = ?"
JOBS = (
    "SELECT number, id, endpoint, status, created_at, state, output, value FROM jobs "
    "LEFT JOIN inputs ON job = number ORDER BY number"
)
CHUNKS = "SELECT attempt, number, value FROM chunks WHERE job = ? ORDER BY attempt, number"

# (number, id, endpoint, status, created_at, state, output); it is read with the input behind it
Row = tuple[int, str, str, str, float, str, bytes | None]
RowWithInput = tuple[int, str, str, str, float, str, bytes | None, bytes | None]

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


def to_row(job: Job, number: int) -> Row:
    """Return a job as the row with this number."""
    policy = job.policy
    state: dict[str, Any] = {name: getattr(job, name) for name in _STATE}
    state["policy"] = [policy.execution_timeout_ms, policy.ttl_ms, policy.low_priority]
    # Text, so that the table can be read with any tool.
    state["extra"] = job.extra.decode(errors="replace")
    state["progress"] = job.progress.decode(errors="replace")
    return (
        number,
        job.id,
        job.endpoint.encode(errors="replace").decode(),
        job.status.value,
        job.created_at,
        _text(state),
        job.output,
    )


def _text(state: dict[str, Any]) -> str:
    try:
        return orjson.dumps(state).decode()
    except TypeError:
        # Half a surrogate pair: a job that cannot be written would keep all others from it too.
        return json.dumps(state).encode(errors="replace").decode()


def outdated(job: Job, number: int) -> tuple[int, int] | None:
    """Return a job's row and the first attempt whose stream is of use; None where all of it is."""
    waits = job.status is JobStatus.IN_QUEUE
    first = job.attempt + waits
    return (number, first) if first > 1 else None


_NUMBER = (int, float)
_OPTIONAL_NUMBER = (int, float, type(None))
_OPTIONAL_TEXT = (str, type(None))
# The types that each value of a row's state may have.
_TYPES: dict[str, tuple[type, ...]] = {
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
    """Return the job of a row. Raises ValueError, KeyError or TypeError if the row is damaged."""
    _, job_id, endpoint, status, created_at, text, output, job_input = row
    # Text that is not UTF-8 is read as bytes.
    if not (isinstance(job_id, str) and isinstance(endpoint, str) and isinstance(text, str)):
        raise ValueError("a text in it is not UTF-8")
    state = _state(text)
    for name, types in _TYPES.items():
        if type(state[name]) not in types:
            raise ValueError(f"its {name} is a {type(state[name]).__name__}")
    execution_timeout_ms, ttl_ms, low_priority = state["policy"]
    if job_input is None:
        raise ValueError("its input is missing")
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
        **{name: state[name] for name in _STATE},
    )


def _state(text: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        state = json.loads(text)
    return state


class NoTables(sqlite3.OperationalError):
    """The database is new, and the disk does not take its tables."""


def open_database(
    path: str,
    busy_s: float,
    *,
    check: bool,
    exclusive: bool = False,
    on_recognised: Callable[[], object] = lambda: None,
) -> sqlite3.Connection:
    """Open or create the database in this version's form; `check` reads all of it once.

    FULL: a commit is on the disk when it returns, not only in the system's memory, so that
    acknowledged jobs survive a power failure. `exclusive` keeps the index of the log in memory
    instead of a file: a full disk has no room for that file. `on_recognised` is called before the
    first change, when it is certain that the database is empty or this program's.

    Raises:
        NoTables: it is new and cannot be created now.
        sqlite3.Error: it cannot be opened, is damaged, or is not a database.
        ValueError: a later version or another program wrote it.
    """
    database = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
    try:
        _recognise(database, exclusive=exclusive)
        on_recognised()
        _prepare(database, check=check)
    except (sqlite3.OperationalError, ValueError, OSError):
        database.close()
        raise
    # A damaged database stays open: closing would fold the log into it and remove the log.
    return database


def is_full(error: sqlite3.Error) -> bool:
    """Return whether an error is of a disk that takes no more, as far as SQLite can say."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
    )


def _recognise(database: sqlite3.Connection, *, exclusive: bool) -> None:
    """Check that a database is empty or this program's, and change nothing. Raises ValueError."""
    if exclusive:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
    version = _version(database)
    columns = {
        (table, column)
        for table, column in database.execute(
            "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        )
    }
    if columns and not (version and columns >= _COLUMNS):
        # Other programs count the versions of their tables as well, so the number says nothing.
        raise ValueError("another program created it")
    if version > VERSION:
        raise ValueError(f"it has version {version}, and this server knows {VERSION}")


def _version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def _prepare(database: sqlite3.Connection, *, check: bool) -> None:
    version = _version(database)
    try:
        _bring_up_to_date(database, version, check=check)
    except sqlite3.OperationalError as error:
        if version == 0 and is_full(error):
            raise NoTables(str(error)) from error
        raise


def _bring_up_to_date(database: sqlite3.Connection, version: int, *, check: bool) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if check:
        (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {result}")
    if version == VERSION:
        # Nothing to write: this must succeed on a full disk.
        return
    before, after = (_TAKE_ASIDE, _TAKE_OVER) if version == 1 else ("", "")
    mark = f"PRAGMA user_version = {VERSION};"
    # In one transaction: a process that is killed in between leaves what there was before.
    database.executescript(f"BEGIN IMMEDIATE;{before}{CREATE}{after}{mark}COMMIT;")

"""Conversion between jobs and rows, and the database settings."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import Job, JobStatus, Policy
from jobs.sqlite.schema import (
    SCHEMA_VERSION,
    UPSERT_INPUT,
    UPSERT_JOB,
    from_row,
    open_database,
    outdated_chunks,
    to_row,
)
from jobs.sqlite.schema import SELECT_JOBS as ALL_ROWS

TIME = st.floats(0, 4e9)
# Text that a client may send; a lone surrogate cannot be encoded as UTF-8.
TEXT = st.text(max_size=20) | st.just("half \ud800")
JSON = st.text(max_size=20).map(str.encode)
JOBS = st.builds(
    Job,
    id=st.uuids().map(str),
    endpoint=st.text(max_size=20),
    input=st.binary(min_size=1, max_size=30),
    created_at=TIME,
    sync=st.booleans(),
    policy=st.builds(
        Policy,
        execution_timeout_ms=st.integers(0, 2**53),
        ttl_ms=st.integers(0, 2**40),
        low_priority=st.booleans(),
    ),
    webhook=st.none() | TEXT,
    extra=JSON,
    status=st.sampled_from(JobStatus),
    attempt=st.integers(0, 10**6),
    lost_attempts=st.integers(0, 10),
    retries=st.integers(0, 10),
    worker_id=st.none() | TEXT,
    queued_at=TIME,
    started_at=st.none() | TIME,
    ended_at=st.none() | TIME,
    progress=JSON,
    output=st.none() | st.binary(max_size=30),
    error=st.none() | TEXT,
    webhook_sent=st.booleans(),
)


@given(job=JOBS)
def test_row_of_any_job_converts_back_to_the_same_job(job: Job) -> None:
    with contextlib.closing(open_database(":memory:", 1, check=True)) as database:
        database.execute(UPSERT_JOB, to_row(job.replace(status=JobStatus.IN_QUEUE, output=None), 7))
        database.execute(UPSERT_INPUT, (7, job.input))
        # Each change of a job writes its row again, but not the input.
        database.execute(UPSERT_JOB, to_row(job, 7))
        (row,) = database.execute(ALL_ROWS).fetchall()
    assert row[0] == 7
    assert from_row(row) == job


def test_invalid_text_is_written_with_replacement_characters() -> None:
    job = Job(id="a", endpoint="e\ud800", input=b"1", created_at=0.0, extra=b"\xff")
    restored = from_row((*to_row(job, 1), job.input))
    assert (restored.endpoint, restored.extra) == ("e?", "\ufffd".encode())


def test_chunks_of_earlier_attempts_are_outdated() -> None:
    job = Job(id="a", endpoint="e", input=b"", created_at=0.0)
    running = job.replace(status=JobStatus.IN_PROGRESS, attempt=2)
    assert outdated_chunks(job, 5) is None
    assert outdated_chunks(running.replace(attempt=1), 5) is None
    assert outdated_chunks(running, 5) == (5, 2)
    assert outdated_chunks(running.replace(status=JobStatus.COMPLETED), 5) == (5, 2)
    assert outdated_chunks(running.replace(status=JobStatus.IN_QUEUE), 5) == (5, 3)


def test_database_survives_a_power_failure(tmp_path: Path) -> None:
    """FULL: acked only after fsync (NATS lost 131,418 of 930,005 acked messages without)."""
    with contextlib.closing(open_database(str(tmp_path / "a"), 1, check=True)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_damaged_row_raises_an_error() -> None:
    row = [*to_row(Job(id="a", endpoint="e", input=b"1", created_at=0.0), 1), b"1"]
    damages: list[tuple[int, str | int]] = [
        (3, "LOST"),
        (5, "{}"),
        (5, "no JSON"),
        (6, "text"),
        (7, 5),
    ]
    for column, value in damages:
        broken = [*row]
        broken[column] = value
        with pytest.raises((KeyError, ValueError)):
            from_row(tuple(broken))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_database_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(ValueError, match=f"it has version {version}"):
        open_database(str(path), 1, check=False)

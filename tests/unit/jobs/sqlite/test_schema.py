"""Jobs as rows, and back."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import Job, JobStatus, Policy
from jobs.sqlite.schema import JOBS as ALL_ROWS
from jobs.sqlite.schema import SAVE, SAVE_INPUT, VERSION, from_row, open_database, outdated, to_row

TIME = st.floats(0, 4e9)
# Text as it may come in: half a pair of surrogates is none that UTF-8 knows.
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
    losses=st.integers(0, 10),
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
def test_any_job_comes_back_from_its_row_as_it_was(job: Job) -> None:
    with contextlib.closing(open_database(":memory:", 1, check=True)) as database:
        database.execute(SAVE, to_row(job.but(status=JobStatus.IN_QUEUE, output=None), 7))
        database.execute(SAVE_INPUT, (7, job.input))
        # Written again, as it is with each change, without what does not change.
        database.execute(SAVE, to_row(job, 7))
        (row,) = database.execute(ALL_ROWS).fetchall()
    assert row[0] == 7
    assert from_row(row) == job


def test_bytes_that_are_no_text_are_written_as_well_as_they_can_be() -> None:
    job = Job(id="a", endpoint="e\ud800", input=b"1", created_at=0.0, extra=b"\xff")
    again = from_row((*to_row(job, 1), job.input))
    assert (again.endpoint, again.extra) == ("e?", "\ufffd".encode())


def test_streams_of_attempts_that_are_over_are_of_no_use() -> None:
    job = Job(id="a", endpoint="e", input=b"", created_at=0.0)
    running = job.but(status=JobStatus.IN_PROGRESS, attempt=2)
    assert outdated(job, 5) is None
    assert outdated(running.but(attempt=1), 5) is None
    assert outdated(running, 5) == (5, 2)
    assert outdated(running.but(status=JobStatus.COMPLETED), 5) == (5, 2)
    assert outdated(running.but(status=JobStatus.IN_QUEUE), 5) == (5, 3)


def test_a_database_is_safe_against_loss_of_power(tmp_path: Path) -> None:
    """FULL: acked only after fsync (NATS lost 131,418 of 930,005 acked messages without)."""
    with contextlib.closing(open_database(str(tmp_path / "a"), 1, check=True)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_row_that_no_job_was_written_as_is_refused() -> None:
    row = [*to_row(Job(id="a", endpoint="e", input=b"1", created_at=0.0), 1), b"1"]
    for place, value in [(3, "LOST"), (5, "{}"), (5, "no JSON")]:
        broken = [*row]
        broken[place] = value
        with pytest.raises((KeyError, ValueError)):
            from_row(tuple(broken))  # type: ignore[arg-type]


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(ValueError, match=f"it has version {VERSION + 1}"):
        open_database(str(path), 1, check=False)

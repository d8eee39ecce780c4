"""A job's states, the times it shows, its copies and its id."""

from __future__ import annotations

import uuid
from dataclasses import FrozenInstanceError, replace

import pytest

from jobs import Job, JobStatus
from jobs.model import new_id


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.IN_QUEUE, False),
        (JobStatus.IN_PROGRESS, False),
        (JobStatus.COMPLETED, True),
        (JobStatus.FAILED, True),
        (JobStatus.CANCELLED, True),
        (JobStatus.TIMED_OUT, True),
    ],
)
def test_final_states(status: JobStatus, final: bool) -> None:
    assert status.final is final


def test_every_state_is_judged_above() -> None:
    assert len(JobStatus) == 6


def test_times_are_shown_once_they_are_known_in_whole_milliseconds() -> None:
    waiting = Job(id="a", endpoint="e", input=b"1", created_at=90.0, queued_at=100.0)
    assert (waiting.delay_ms, waiting.execution_ms) == (None, None)
    running = replace(waiting, started_at=100.25)
    assert (running.delay_ms, running.execution_ms) == (250, None)
    ended = replace(running, ended_at=102.0006)
    assert (ended.delay_ms, ended.execution_ms) == (250, 1751)


def test_a_clock_that_was_set_back_shows_no_time_below_zero() -> None:
    job = Job(
        id="a", endpoint="e", input=b"", created_at=9.0, queued_at=9.0, started_at=5.0, ended_at=1.0
    )
    assert (job.delay_ms, job.execution_ms) == (0, 0)


def test_size_counts_all_that_may_be_long() -> None:
    job = Job(id="a", endpoint="e", input=b"12", created_at=0.0, extra=b"345", progress=b"6789")
    assert job.size == 9
    assert replace(job, output=b"x" * 10, error="y" * 20).size == 39


def test_a_copy_differs_in_what_was_named() -> None:
    job = Job(id="a", endpoint="e", input=b"1", created_at=0.0, webhook="http://x/")
    changes = {"status": JobStatus.FAILED, "error": "no", "attempt": 3}
    copy = job.but(**changes)
    assert copy == replace(job, **changes)  # type: ignore[arg-type]
    assert job.status is JobStatus.IN_QUEUE
    with pytest.raises(FrozenInstanceError):
        copy.attempt = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        job.but(state=JobStatus.FAILED)


def test_ids_are_uuids_of_the_fourth_version() -> None:
    ids = [new_id(sync=False) for _ in range(200)]
    for each in ids:
        assert each.endswith("-u1")
        known = uuid.UUID(each.removesuffix("-u1"))
        assert (known.version, known.variant, f"{known}-u1") == (4, uuid.RFC_4122, each)
    assert len(set(ids)) == 200
    assert new_id(sync=True).startswith("sync-")

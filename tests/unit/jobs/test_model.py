"""Job statuses, durations, copies and ids."""

from __future__ import annotations

import uuid
from dataclasses import FrozenInstanceError, replace

import pytest

from jobs import Job, JobStatus
from jobs.model import new_id


@pytest.mark.parametrize(
    ("status", "is_final"),
    [
        (JobStatus.IN_QUEUE, False),
        (JobStatus.IN_PROGRESS, False),
        (JobStatus.COMPLETED, True),
        (JobStatus.FAILED, True),
        (JobStatus.CANCELLED, True),
        (JobStatus.TIMED_OUT, True),
    ],
)
def test_is_final_by_status(status: JobStatus, is_final: bool) -> None:
    assert status.is_final is is_final


def test_every_status_is_in_the_test_above() -> None:
    assert len(JobStatus) == 6


def test_known_durations_are_integer_milliseconds() -> None:
    waiting = Job(id="a", endpoint="e", input=b"1", created_at=90.0, queued_at=100.0)
    assert (waiting.delay_ms, waiting.execution_ms) == (None, None)
    running = replace(waiting, started_at=100.25)
    assert (running.delay_ms, running.execution_ms) == (250, None)
    ended = replace(running, ended_at=102.0006)
    assert (ended.delay_ms, ended.execution_ms) == (250, 1751)


def test_durations_are_not_negative_when_the_clock_was_set_back() -> None:
    job = Job(
        id="a", endpoint="e", input=b"", created_at=9.0, queued_at=9.0, started_at=5.0, ended_at=1.0
    )
    assert (job.delay_ms, job.execution_ms) == (0, 0)


def test_size_counts_fields_of_any_length() -> None:
    job = Job(id="a", endpoint="e", input=b"12", created_at=0.0, extra=b"345", progress=b"6789")
    assert job.size == 9
    assert replace(job, output=b"x" * 10, error="y" * 20).size == 39


def test_replace_changes_only_the_named_fields() -> None:
    job = Job(id="a", endpoint="e", input=b"1", created_at=0.0, webhook="http://x/")
    changes = {"status": JobStatus.FAILED, "error": "no", "attempt": 3}
    copy = job.replace(**changes)
    assert copy == replace(job, **changes)  # type: ignore[arg-type]
    assert job.status is JobStatus.IN_QUEUE
    with pytest.raises(FrozenInstanceError):
        copy.attempt = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="state"):
        job.replace(state=JobStatus.FAILED)


def test_new_id_is_a_version_4_uuid() -> None:
    ids = [new_id(sync=False) for _ in range(200)]
    for each in ids:
        assert each.endswith("-u1")
        known = uuid.UUID(each.removesuffix("-u1"))
        assert (known.version, known.variant, f"{known}-u1") == (4, uuid.RFC_4122, each)
    assert len(set(ids)) == 200
    assert new_id(sync=True).startswith("sync-")

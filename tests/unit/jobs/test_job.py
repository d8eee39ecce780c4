"""A job's states and the times it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs import Job, JobStatus


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.IN_QUEUE, False),
        (JobStatus.IN_PROGRESS, False),
        (JobStatus.COMPLETED, True),
        (JobStatus.FAILED, True),
    ],
)
def test_final_states(status: JobStatus, final: bool) -> None:
    assert status.final is final


def test_every_state_is_judged_above() -> None:
    assert len(JobStatus) == 4


def test_times_are_shown_once_they_are_known_in_whole_milliseconds() -> None:
    waiting = Job(id="a", input={}, queued_at=100.0)
    assert (waiting.status, waiting.delay_ms, waiting.execution_ms) == ("IN_QUEUE", None, None)
    running = replace(waiting, started_at=100.25)
    assert (running.delay_ms, running.execution_ms) == (250, None)
    ended = replace(running, ended_at=102.0006)
    assert (ended.delay_ms, ended.execution_ms) == (250, 1751)

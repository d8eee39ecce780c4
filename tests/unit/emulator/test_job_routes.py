"""A job as RunPod shows it."""

from __future__ import annotations

import json
from dataclasses import replace

from emulator.job_routes import describe
from jobs import Job, JobStatus

WAITING = Job(id="j-u1", input={}, queued_at=10.0)
RUNNING = replace(WAITING, status=JobStatus.IN_PROGRESS, started_at=10.5)


def test_waiting_job_has_no_times() -> None:
    assert describe(WAITING) == {"id": "j-u1", "status": "IN_QUEUE"}


def test_running_job_has_its_delay() -> None:
    assert describe(RUNNING) == {"id": "j-u1", "status": "IN_PROGRESS", "delayTime": 500}


def test_completed_job_has_its_output_whatever_that_is() -> None:
    for output in ({"a": 1}, [1], "text", None, 0):
        job = replace(RUNNING, status=JobStatus.COMPLETED, ended_at=11.0, output=output)
        assert describe(job) == {
            "id": "j-u1",
            "status": "COMPLETED",
            "delayTime": 500,
            "executionTime": 500,
            "output": output,
        }


def test_failed_job_has_one_error_string_and_no_output() -> None:  # R50
    shown = describe(replace(RUNNING, status=JobStatus.FAILED, ended_at=11.0, error="it broke"))
    assert shown["error"] == "it broke"
    assert "output" not in shown
    assert json.loads(json.dumps(shown)) == shown

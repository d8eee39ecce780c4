"""The jobs to stop that the calls of a worker return."""

from __future__ import annotations

import time

import pytest

from emulator.runpod.remote_worker import RemoteWorker

LONG_AGO_S = 60.0
WHY = "was cancelled"


@pytest.fixture
def worker() -> RemoteWorker:
    return RemoteWorker("here", "w1")


def test_worker_without_a_stop_has_no_unstopped_job(worker: RemoteWorker) -> None:
    assert worker.find_unstopped_job(time.monotonic()) is None


def test_worker_has_some_time_to_make_its_next_call(worker: RemoteWorker) -> None:
    now = time.monotonic()
    worker.record_stop(now, 3, WHY)
    assert worker.find_unstopped_job(now + 2) is None
    assert worker.find_unstopped_job(now + 4) == WHY


def test_worker_that_calls_after_the_stop_runs_no_such_job(worker: RemoteWorker) -> None:
    worker.record_stop(time.monotonic() - LONG_AGO_S, 3, WHY)
    with worker.poll("stop"):
        assert worker.find_unstopped_job(time.monotonic()) is None
    assert worker.find_unstopped_job(time.monotonic() + LONG_AGO_S) is None


def test_call_that_was_open_before_the_stop_reports_no_stop(worker: RemoteWorker) -> None:
    with worker.poll("stop"), worker.poll("take"):
        now = time.monotonic()
        worker.record_stop(now, 3, WHY)
        assert worker.find_unstopped_job(now + 4) == WHY


def test_worker_with_an_older_sdk_is_not_judged_while_a_call_is_open(worker: RemoteWorker) -> None:
    with worker.poll("take"):
        now = time.monotonic()
        worker.record_stop(now, 3, WHY)
        assert worker.find_unstopped_job(now + 4) is None
    worker.record_stop(time.monotonic(), 3, WHY)
    assert worker.find_unstopped_job(time.monotonic() + 4) == WHY


def test_job_that_a_worker_reports_long_after_its_stop_is_unstopped(worker: RemoteWorker) -> None:
    with worker.poll("stop"):
        worker.record_unstopped_job(WHY)
        assert worker.find_unstopped_job(time.monotonic()) == WHY
        worker.forget_stop()
        assert worker.find_unstopped_job(time.monotonic()) is None

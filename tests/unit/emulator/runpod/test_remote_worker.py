"""What the calls of a worker say about a job that was timed out."""

from __future__ import annotations

import time

import pytest

from emulator.runpod.remote_worker import RemoteWorker

LONG_AGO_S = 60.0


@pytest.fixture
def worker() -> RemoteWorker:
    return RemoteWorker("here", "w1")


def test_worker_without_a_timed_out_job_holds_none(worker: RemoteWorker) -> None:
    assert not worker.holds_timed_out_job(time.monotonic())


def test_worker_has_some_time_to_make_its_next_call(worker: RemoteWorker) -> None:
    now = time.monotonic()
    worker.record_time_out(now)
    assert not worker.holds_timed_out_job(now + 2)
    assert worker.holds_timed_out_job(now + 4)


def test_worker_that_calls_after_the_time_out_holds_no_job(worker: RemoteWorker) -> None:
    worker.record_time_out(time.monotonic() - LONG_AGO_S)
    with worker.poll("stop"):
        assert not worker.holds_timed_out_job(time.monotonic())
    assert not worker.holds_timed_out_job(time.monotonic() + LONG_AGO_S)


def test_call_that_was_open_before_the_time_out_says_nothing(worker: RemoteWorker) -> None:
    with worker.poll("stop"), worker.poll("take"):
        now = time.monotonic()
        worker.record_time_out(now)
        assert worker.holds_timed_out_job(now + 4)


def test_worker_with_an_older_sdk_is_not_judged_while_a_call_is_open(worker: RemoteWorker) -> None:
    with worker.poll("take"):
        now = time.monotonic()
        worker.record_time_out(now)
        assert not worker.holds_timed_out_job(now + 4)
    worker.record_time_out(time.monotonic())
    assert worker.holds_timed_out_job(time.monotonic() + 4)


def test_worker_that_reports_a_job_long_after_its_time_out_holds_it(worker: RemoteWorker) -> None:
    with worker.poll("stop"):
        worker.record_timed_out_job()
        assert worker.holds_timed_out_job(time.monotonic())
        worker.forget_time_out()
        assert not worker.holds_timed_out_job(time.monotonic())

"""The two lines about a job: that it started, and how it ended."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from structlog.contextvars import bound_contextvars

from emulator.runpod.job_log import log_ended, log_started
from handler.logs.json_lines import FIELDS, collect_fields
from jobs import Job, JobStatus, MemoryJobStore, NewJob


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def job(**changes: Any) -> Job:
    ended = Job(
        id="j-1",
        endpoint="mine",
        input=b"{}",
        created_at=100.0,
        queued_at=100.0,
        started_at=100.5,
        ended_at=102.0,
        attempt=1,
        worker_id="mine/w-1",
        status=JobStatus.COMPLETED,
    )
    return ended.replace(**changes)


def fields(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = caplog.records
    logged: dict[str, Any] = record.__dict__[FIELDS]
    return {"event": record.getMessage(), **logged}


def test_started_job_names_endpoint_worker_and_wait(caplog: pytest.LogCaptureFixture) -> None:
    log_started(job(status=JobStatus.IN_PROGRESS, ended_at=None))
    assert fields(caplog) == {
        "event": "job j-1 started",
        "job_id": "j-1",
        "endpoint": "mine",
        "worker": "w-1",
        "state": "IN_PROGRESS",
        "attempt": 1,
        "queue_ms": 500,
    }


def test_line_has_no_id_of_the_request_in_which_the_job_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logged = []
    with bound_contextvars(request_id="of-another-job"):
        handler = logging.Handler()
        handler.emit = lambda record: logged.append(collect_fields(record))  # type: ignore[method-assign]
        logging.getLogger("emulator.runpod.job_log").addHandler(handler)
        try:
            log_started(job(status=JobStatus.IN_PROGRESS, ended_at=None))
        finally:
            logging.getLogger("emulator.runpod.job_log").removeHandler(handler)
    assert [each.get("request_id") for each in logged] == [None]


def test_started_line_has_the_number_of_a_later_attempt(caplog: pytest.LogCaptureFixture) -> None:
    log_started(job(status=JobStatus.IN_PROGRESS, attempt=2))
    assert fields(caplog)["event"] == "job j-1 started again (attempt 2)"


def test_completed_job_has_times_and_tokens(caplog: pytest.LogCaptureFixture) -> None:
    output = {"choices": [{"text": "x"}], "usage": {"input": 3, "output": 40, "total": 43}}
    log_ended(job(output=orjson.dumps(output)))
    assert fields(caplog) == {
        "event": "job j-1 COMPLETED",
        "job_id": "j-1",
        "endpoint": "mine",
        "state": "COMPLETED",
        "worker": "w-1",
        "queue_ms": 500,
        "run_ms": 1500,
        "tokens": 40,
    }


@pytest.mark.parametrize(
    ("output", "tokens"),
    [
        ([{"choices": []}, {"usage": {"input": 1, "output": 7, "total": 8}}], 7),
        ({"usage": {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}}, 9),
        ({"choices": [{"text": "y" * 100_000}], "usage": {"input": 1, "output": 5}}, 5),
        ({"text": '"usage":{"input":1,"output":999}'}, None),
        ("anything else", None),
    ],
)
def test_tokens_come_from_the_usage_and_never_from_generated_text(
    output: Any, tokens: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    log_ended(job(output=orjson.dumps(output)))
    assert fields(caplog).get("tokens") == tokens


def test_failed_job_is_logged_with_a_sanitized_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_ended(job(status=JobStatus.FAILED, error='n must be a number, got "my prompt"'))
    assert fields(caplog)["error"] == "n must be a number, got a string"


def test_no_record_is_built_when_info_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log_started(job())
    log_ended(job())
    assert not caplog.records


async def test_store_logs_each_start_and_end_of_a_job(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryJobStore(on_ended=log_ended, on_started=log_started)
    await store.start()
    first = await store.enqueue(NewJob(endpoint="mine", input=b"{}"))
    waiting = await store.enqueue(NewJob(endpoint="mine", input=b"{}"))
    (leased,) = await store.receive("mine", "mine/w", lease_s=60)
    await store.nack(leased.id, leased.attempt)
    (leased,) = await store.receive("mine", "mine/w", lease_s=60)
    await store.nack(leased.id, leased.attempt, "its worker went away")
    (leased,) = await store.receive("mine", "mine/w", lease_s=60)
    await store.ack(leased.id, leased.attempt, output=b"1")
    await store.cancel(waiting.id)
    await store.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"job {first.id} started",
        f"job {first.id} was given back and waits again",
        f"job {first.id} started again (attempt 2)",
        f"job {first.id} was lost and waits again: its worker went away",
        f"job {first.id} started again (attempt 3)",
        f"job {first.id} COMPLETED",
        f"job {waiting.id} CANCELLED",
    ]


async def test_job_that_expires_in_the_queue_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    store = MemoryJobStore(now=lambda: clock[0], monotonic=lambda: clock[0])
    sent = await store.enqueue(NewJob(endpoint="mine", input=b"{}"))
    clock[0] = 90_000.0
    await store.sweep()
    assert [record.getMessage() for record in caplog.records] == [
        f"job {sent.id} expired in the queue: its ttl of 86400 s is over"
    ]

"""Jobs whose results a launched worker cannot send end at once, with the worker's reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from emulator.runpod.job_response import worker_key
from emulator.runpod.result_watch import _MAX_REASONS, ResultWatch
from jobs import Job, JobStatus, MemoryJobStore, NewJob

NO_JSON = "Error while returning job result. | Object of type Decimal is not JSON serializable"
REFUSED = "Failed to return job results. | 400, message='Bad Request'"
FINISHED = "Finished."


@pytest.fixture
async def store() -> AsyncIterator[MemoryJobStore]:
    store = MemoryJobStore()
    await store.start()
    yield store
    await store.close()


async def lease(store: MemoryJobStore) -> Job:
    await store.enqueue(NewJob(endpoint="ep", input=b"{}"))
    [job] = await store.receive("ep", worker_key("ep", "w"), lease_s=30)
    return job


def line(message: str, job_id: str | None) -> str:
    """Return a line as the SDK's logger prints it."""
    return json.dumps({"requestId": job_id, "message": message, "level": "INFO"})


async def read(store: MemoryJobStore, watch: ResultWatch, job: Job, *messages: str) -> Job:
    """Have the watch read lines about a job, and return the job after that."""
    for message in messages:
        watch.read_line("ep", "w", line(message, job.id))
    await watch.close()
    after = await store.get(job.id)
    assert after is not None
    return after


@pytest.mark.parametrize("prefix", ["", "[batchId=b1] "])
@pytest.mark.parametrize("message", [NO_JSON, REFUSED])
async def test_job_without_a_result_fails_without_a_retry(
    store: MemoryJobStore, message: str, prefix: str
) -> None:
    job = await lease(store)
    ended = await read(store, ResultWatch(store), job, prefix + message, prefix + FINISHED)
    assert (ended.status, ended.attempt) == (JobStatus.FAILED, 1)
    assert ended.error == f"the job's result could not be sent: {message.partition(' | ')[2]}"


async def test_job_that_is_finished_without_a_result_fails(store: MemoryJobStore) -> None:
    ended = await read(store, ResultWatch(store), await lease(store), FINISHED)
    assert ended.error == "the job's result could not be sent: the worker has not said why"


async def test_job_goes_on_after_an_update_that_was_not_sent(store: MemoryJobStore) -> None:
    # A progress update or a chunk; the result may still come.
    watch, job = ResultWatch(store), await lease(store)
    now = await read(store, watch, job, NO_JSON)
    assert now.status is JobStatus.IN_PROGRESS
    assert watch.take_reason(now) == "Object of type Decimal is not JSON serializable"
    assert watch.take_reason(now) is None


@pytest.mark.parametrize("case", ["ended", "of another worker"])
async def test_lines_about_other_jobs_end_no_job(store: MemoryJobStore, case: str) -> None:
    watch, job = ResultWatch(store), await lease(store)
    if case == "ended":
        await store.ack(job.id, job.attempt, output=b"1")
    watch.read_line("ep", "other" if case == "of another worker" else "w", line(FINISHED, job.id))
    watch.read_line("ep", "w", line(FINISHED, "unknown"))
    await watch.close()
    now = await store.get(job.id)
    assert now is not None
    expected = JobStatus.COMPLETED if case == "ended" else JobStatus.IN_PROGRESS
    assert now.status is expected


@pytest.mark.parametrize(
    "text",
    [
        "Finished.",
        'print("Finished.")',
        line("I have Finished.", "JOB"),
        line(FINISHED, None),
        '{"requestId": "JOB", "message": "Finished."',
    ],
)
async def test_output_of_the_handler_ends_no_job(store: MemoryJobStore, text: str) -> None:
    watch, job = ResultWatch(store), await lease(store)
    watch.read_line("ep", "w", text.replace("JOB", job.id))
    await watch.close()
    now = await store.get(job.id)
    assert now is not None
    assert now.status is JobStatus.IN_PROGRESS


async def test_reasons_are_bounded(store: MemoryJobStore) -> None:
    watch = ResultWatch(store)
    for number in range(_MAX_REASONS + 5):
        watch.read_line("ep", "w", line(NO_JSON, f"job-{number}"))
    assert len(watch._reasons) == _MAX_REASONS

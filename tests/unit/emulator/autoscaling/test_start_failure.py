"""The jobs that wait for a handler that does not start."""

from __future__ import annotations

from emulator.autoscaling.start_failure import build_start_failure, fail_queued_jobs
from jobs import JobStatus, MemoryJobStore, NewJob

FAILURE = build_start_failure(
    "w1", "handler.py", "exited with code 1; its last line: E: x", ["Traceback", "E: x"]
)


def test_start_failure_has_the_reason_first_and_then_the_output() -> None:
    assert FAILURE.error == (
        "handler.py did not start: it exited with code 1; its last line: E: x\n\nTraceback\nE: x"
    )
    assert FAILURE.to_wire() == {
        "worker": "w1",
        "reason": "it exited with code 1; its last line: E: x",
        "output": "Traceback\nE: x",
    }
    silent = build_start_failure("w1", "h.py", "exited with code 1", [])
    assert silent.error == "h.py did not start: it exited with code 1"


def test_start_failure_keeps_the_end_of_long_output() -> None:
    failure = build_start_failure("w1", "h.py", "exited", ["x" * 9_000, "the end"])
    assert len(failure.output) == 8_000
    assert failure.output.endswith("\nthe end")


async def test_fail_queued_jobs_ends_all_jobs_of_the_endpoint() -> None:
    store = MemoryJobStore()
    jobs = [await store.enqueue(NewJob(endpoint="mine", input=b"{}")) for _ in range(150)]
    other = await store.enqueue(NewJob(endpoint="other", input=b"{}"))
    assert await fail_queued_jobs(store, "mine", FAILURE) == 150
    for job in jobs:
        now = await store.get(job.id)
        assert now is not None
        assert now.status is JobStatus.FAILED
        assert FAILURE.error in str(now.error)
    waiting = await store.get(other.id)
    assert waiting is not None
    assert waiting.status is JobStatus.IN_QUEUE
    assert await fail_queued_jobs(store, "mine", FAILURE) == 0

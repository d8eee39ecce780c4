"""Unmodified SDK workers at a local RunPod: each kind of handler, its errors, its ends.

Each worker has an endpoint of its own and nothing of ours but environment variables. A test that
ends one starts another in its place; jobs just wait until it has imported the SDK.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.workers.processes import (
    HANDLERS,
    WAIT_S,
    Platform,
    SDKWorker,
    wait_until_true,
)

KINDS = ("plain", "async", "generator", "async_generator")
STREAMING = ("generator", "async_generator")
# Of the async generator's worker; the others run one job at a time, the SDK's default.
CONCURRENCY = 3
GRACE_S = 0.5

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(
        tmp_path_factory.mktemp("platform"),
        LOCAL_WORKER="off",
        LOG_LEVEL="DEBUG",
        MAX_LOSSES="2",
        MAX_RUN_MB="1.5",
        MAX_RUNSYNC_MB="1.5",
        WORKER_GRACE_S=str(GRACE_S),
    )
    yield platform
    platform.close()


@pytest.fixture(scope="module")
def workers(
    platform: Platform, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, SDKWorker]]:
    workers = {
        kind: SDKWorker(
            platform,
            kind,
            tmp_path_factory.mktemp(kind),
            [str(HANDLERS)],
            {
                "KIND": kind,
                "CONCURRENCY": str(CONCURRENCY) if kind == "async_generator" else "1",
                # The server responds to a ping that lists a cancelled job with another stop.
                "RUNPOD_PING_INTERVAL": "1000",
                # The SDK's default level is DEBUG.
                "RUNPOD_LOG_LEVEL": "INFO",
            },
        )
        for kind in KINDS
    }
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest, workers: dict[str, SDKWorker]) -> SDKWorker:
    """Each kind of worker."""
    return workers[request.param]


@pytest.fixture(params=STREAMING)
def streaming(request: pytest.FixtureRequest, workers: dict[str, SDKWorker]) -> SDKWorker:
    """Each kind of worker that streams."""
    return workers[request.param]


def check_works(platform: Platform, worker: SDKWorker) -> None:
    output = platform.run(worker.endpoint, {"say": "fine"}).output()
    assert output in (["fine"], {"said": "fine", "job": ["id", "input"]})


# -- outputs and errors ---------------------------------------------------------------------------


def test_output(platform: Platform, worker: SDKWorker) -> None:
    job = platform.run(worker.endpoint, {"say": "one twö three"})
    if worker.endpoint in STREAMING:
        assert job.output() == job.read_stream() == ["one", "twö", "three"]
    else:
        assert job.output() == {"said": "one twö three", "job": ["id", "input"]}
        assert job.read_stream() == []
        message = job.call("stream")["message"]
        assert message.startswith(f"worker {worker.endpoint} returned its output without streaming")
    ended = job.call("status")
    assert ended["workerId"] == worker.endpoint
    assert ended["delayTime"] >= 0
    assert ended["executionTime"] >= 0


def test_runsync(platform: Platform, worker: SDKWorker) -> None:
    ended = platform.call_sync(worker.endpoint, {"input": {"say": "hello"}})
    assert ended["status"] == "COMPLETED"
    assert ended["id"].startswith("sync-")


def test_error(platform: Platform, worker: SDKWorker) -> None:
    job = platform.run(worker.endpoint, {"say": "one two", "error": "oh nö"})
    error = job.error()
    if worker.endpoint in STREAMING:
        # The SDK writes this text; chunks from before the error stay in the stream.
        assert error.startswith("handler: oh nö \ntraceback: ")
        assert job.read_stream() == ["one", "two"]
    else:
        details = json.loads(error)
        assert details["error_type"] == "<class 'ValueError'>"
        assert details["error_message"] == "oh nö"
        assert details["worker_id"] == worker.endpoint
    assert "output" not in job.call("status")
    check_works(platform, worker)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("returned", "output"), [(None, None), ({}, None), ("text", "text"), ([1], [1]), (False, False)]
)
def test_outputs_of_other_kinds(
    platform: Platform, workers: dict[str, SDKWorker], kind: str, returned: Any, output: Any
) -> None:
    assert platform.run(workers[kind].endpoint, {"whole": returned}).output() == output


def test_returned_error_and_refresh(platform: Platform, workers: dict[str, SDKWorker]) -> None:
    job_input = {"whole": {"error": "soft", "refresh_worker": True, "rest": 1}}
    ended = platform.run("async", job_input).wait_for_end()
    assert (ended["status"], ended["error"], ended["output"]) == ("FAILED", "soft", {"rest": 1})


@pytest.mark.long_except("async")
def test_result_that_is_refused_fails_the_job(platform: Platform, worker: SDKWorker) -> None:
    for odd, message in (
        ("nan", "NaN and Infinity are no JSON"),
        ("large", "the body is larger than 1"),
    ):
        error = platform.run(worker.endpoint, {"odd": odd}).error()
        what = "stream" if worker.endpoint in STREAMING else "result"
        assert error.startswith(f"the job's {what} could not be taken: ")
        assert message in error
    check_works(platform, worker)


def test_result_that_the_sdk_cannot_write_fails_the_job(
    platform: Platform, workers: dict[str, SDKWorker]
) -> None:
    # R81: the SDK prints a TypeError and posts nothing, ever; then it asks for the next job. These
    # workers were started by hand, so what they print is not read.
    job = platform.run("async", {"odd": "bytes", "name": "bytes"})
    assert job.error() == "the job failed: its worker has stopped running it and sent no result"
    assert workers["async"].count_notes("began", "bytes") == 1
    check_works(platform, workers["async"])


# -- while it runs --------------------------------------------------------------------------------


@pytest.mark.long_except("async_generator")
def test_stream_arrives_while_the_job_runs(platform: Platform, streaming: SDKWorker) -> None:
    job = platform.run(streaming.endpoint, {"say": "a b c", "sleep_s": 0.4})
    first: dict[str, Any] = {}
    while not first.get("stream"):
        first = job.call("stream")
    assert first == {"status": "IN_PROGRESS", "stream": [{"output": "a"}]}
    assert job.read_stream() == ["b", "c"]
    assert job.output() == ["a", "b", "c"]


def test_progress_is_the_output_until_the_result_replaces_it(
    platform: Platform, workers: dict[str, SDKWorker], tmp_path: Path
) -> None:
    until = tmp_path / "until"
    job = platform.run("plain", {"say": "whole", "progress": True, "until": str(until)})
    wait_until_true(lambda: job.call("status").get("output") == "half of it")
    assert job.status() == "IN_PROGRESS"
    until.touch()
    assert job.output()["said"] == "whole"


@pytest.mark.parametrize("kind", ["async", "async_generator"])
def test_cancel_reaches_the_handler(
    platform: Platform, workers: dict[str, SDKWorker], kind: str
) -> None:
    job = platform.run(kind, {"say": "x y", "sleep_s": 60, "name": "long"})
    wait_until_true(lambda: workers[kind].count_notes("began", "long") == 1)
    assert job.call("cancel", "POST") == {"id": job.id, "status": "CANCELLED"}
    wait_until_true(lambda: workers[kind].count_notes("cancelled", "long") == 1)
    check_works(platform, workers[kind])
    assert job.status() == "CANCELLED"
    workers[kind].notes.unlink()


def test_cancel_ends_a_generator_between_two_parts(
    platform: Platform, workers: dict[str, SDKWorker]
) -> None:
    worker = workers["generator"]
    job = platform.run("generator", {"say": "x " * 1_000, "sleep_s": 0.3, "name": "parts"})
    wait_until_true(lambda: worker.count_notes("began", "parts") == 1)
    assert job.call("cancel", "POST")["status"] == "CANCELLED"
    # All of its parts would take longer than this waits.
    check_works(platform, worker)
    assert job.status() == "CANCELLED"


@pytest.mark.long_except("async")
@pytest.mark.parametrize("kind", ["async", "async_generator"])
def test_cancel_before_the_handler_starts_frees_the_worker(
    platform: Platform, workers: dict[str, SDKWorker], kind: str
) -> None:
    # The SDK begins what it has taken up to a tenth of a second later, or more on a busy machine,
    # and drops a stop before.
    check_works(platform, workers[kind])
    concurrency = CONCURRENCY if kind == "async_generator" else 1
    jobs = [platform.run(kind, {"say": "x y", "sleep_s": 60}) for _ in range(concurrency)]
    for job in jobs:
        assert job.wait_until_started().call("cancel", "POST")["status"] == "CANCELLED"
    # Each of the worker's slots is free again. The handler's notes cannot show it: the SDK drops a
    # generator that is stopped while it sends a chunk, without notifying it.
    after = [platform.run(kind, {"say": "x y", "sleep_s": 2}) for _ in range(concurrency)]
    wait_until_true(lambda: {job.status() for job in after} == {"IN_PROGRESS"})
    for job in after:
        assert job.wait_for_end()["status"] == "COMPLETED"
    workers[kind].notes.unlink(missing_ok=True)


def test_several_at_a_time_are_taken_as_a_batch(
    platform: Platform, workers: dict[str, SDKWorker]
) -> None:
    check_works(platform, workers["async_generator"])
    jobs = [
        platform.run("async_generator", {"say": f"{number} x", "sleep_s": 1.5})
        for number in range(CONCURRENCY)
    ]
    wait_until_true(lambda: {job.status() for job in jobs} == {"IN_PROGRESS"})
    assert [job.output() for job in jobs] == [[str(n), "x"] for n in range(CONCURRENCY)]
    assert "/v2/async_generator/job-take-batch/async_generator" in platform.log
    assert "/v2/async/job-take-batch/" not in platform.log


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.long_except("plain")
def test_sigterm_drains_a_worker(platform: Platform, worker: SDKWorker) -> None:
    job = platform.run(worker.endpoint, {"say": "last", "sleep_s": 1.5, "name": "drained"})
    wait_until_true(lambda: worker.count_notes("began", "drained"))
    worker.terminate()
    output = job.output()
    assert (output if worker.endpoint in STREAMING else [output["said"]]) == ["last"]
    assert worker.process.wait(WAIT_S) == 0
    assert worker.count_notes("began", "drained") == 1
    worker.restart()


def test_worker_that_is_shutting_down_gets_no_jobs(
    platform: Platform, workers: dict[str, SDKWorker]
) -> None:
    worker = workers["async_generator"]
    check_works(platform, worker)
    # By now the worker has open polls for jobs, and keeps them open.
    time.sleep(0.5)
    worker.terminate()
    time.sleep(0.3)
    job = platform.run("async_generator", {"say": "later", "name": "later"})
    assert worker.process.wait(WAIT_S) == 0
    assert worker.count_notes("began", "later") == 0
    assert job.status() == "IN_QUEUE"
    worker.restart()
    assert job.output() == ["later"]


def test_killed_worker_is_noticed_and_its_job_redone(
    platform: Platform, workers: dict[str, SDKWorker], tmp_path: Path
) -> None:
    # The handler blocks the event loop, so the worker sends nothing but heartbeats.
    worker = workers["plain"]
    check_works(platform, worker)
    until = tmp_path / "until"
    job = platform.run("plain", {"say": "again", "until": str(until), "name": "redone"})
    wait_until_true(lambda: worker.count_notes("began", "redone"))
    # Longer than the server holds a poll of an idle worker.
    time.sleep(2.5)
    assert job.status() == "IN_PROGRESS"
    worker.kill()
    # Its heartbeats go on, so it is not a lease that ends.
    wait_until_true(lambda: job.status() == "IN_QUEUE")
    worker.restart()
    wait_until_true(lambda: worker.count_notes("began", "redone") == 2)
    until.touch()
    assert job.output()["said"] == "again"
    assert worker.count_notes("began", "redone") == 2


def test_job_that_kills_its_workers_fails(
    platform: Platform, workers: dict[str, SDKWorker]
) -> None:
    worker = workers["generator"]
    job = platform.run("generator", {"say": "a b", "sleep_s": 30, "name": "killer"})
    wait_until_true(lambda: worker.count_notes("began", "killer") == 1)
    worker.kill()
    worker.restart()
    wait_until_true(lambda: worker.count_notes("began", "killer") == 2)
    worker.kill()
    assert job.error() == (
        "the job was started and lost 2 times; the last time: its worker went away"
    )
    worker.restart()
    check_works(platform, worker)
    assert worker.count_notes("began", "killer") == 2


def test_jobs_outlive_the_server(
    platform: Platform, workers: dict[str, SDKWorker], tmp_path: Path
) -> None:
    until = tmp_path / "until"
    job_input = {"say": "still here", "until": str(until), "name": "outlives"}
    jobs = {kind: platform.run(kind, job_input) for kind in ("plain", "async")}
    for kind in jobs:
        wait_until_true(partial(workers[kind].count_notes, "began", "outlives"))
    wait_until_true(lambda: platform.count_stored_jobs("IN_PROGRESS") >= len(jobs))
    platform.kill()
    platform.start()
    assert {job.status() for job in jobs.values()} == {"IN_PROGRESS"}
    # The SDK retries the delivery of a result for three seconds, and then drops it.
    until.touch()
    for job in jobs.values():
        assert job.output()["said"] == "still here"
    assert workers["async"].count_notes("began", "outlives") == 1
    # A blocked event loop does not see that its connections are dead: the SDK may try the old ones,
    # give the result up and ask for the next job.
    assert workers["plain"].count_notes("began", "outlives") <= 2

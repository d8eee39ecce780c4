"""Run the unmodified SDK as a worker process: results, crashes and restarts."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai._streaming import SSEDecoder

from tests.integration.handler.conftest import SLOTS, WorkerFactory
from tests.integration.handler.control_plane import API_KEY, WAIT_S, Job, Worker, text_of

HANGING = {"prompt": "hang"}
SLOW = {"prompt": "slow"}


def streamed(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "sampling_params": {"stream": True}}


def answer(job: Job) -> dict[str, Any]:
    """The one JSON of a job: the output, or in generator mode the last one of the list (R45)."""
    output = job.output()
    if isinstance(output, list):
        assert output == job.streamed
        output = output[-1]
    assert isinstance(output, dict)
    return output


def text(job: Job) -> str:
    return str(answer(job)["choices"][0]["text"])


def test_job_completes_with_its_output(worker: Worker) -> None:
    # R45, R46, R51
    job = worker.plane.submit(streamed("hello"))
    output = answer(job)
    assert output["choices"][0]["text"] == "Hello world"
    assert output["choices"][0]["deltas"] == ["He", "llo", " wor", "ld"]
    assert output["usage"] == {"input": 1, "output": 4, "total": 5}
    assert output["id"] == job.id
    assert set(job.done[0]) == {"output"}


def test_partial_outputs_are_sent_while_the_job_runs(generator_worker: Worker) -> None:
    # R29, R45
    job = generator_worker.plane.submit(streamed("hello"))
    *partials, final = job.output()
    assert len(partials) > 1
    assert text_of(partials) == final["choices"][0]["text"] == "Hello world"
    hanging = generator_worker.plane.submit(streamed("hang"))
    hanging.wait_streaming()
    assert text_of(hanging.streamed) == "again"
    assert not hanging.finished.is_set()
    generator_worker.plane.stop(hanging)


@pytest.mark.long_except(
    "aggregate-empty", "aggregate-surrogate", "aggregate-nan", "aggregate-string", "generator-empty"
)
@pytest.mark.parametrize(
    ("job_input", "message"),
    [
        ({"prompt": ""}, 'input.prompt must be a non-empty string, got ""'),
        (
            {"prompt": "x", "sampling_params": {"temperature": float("nan")}},
            "input.sampling_params.temperature must be a number from 0 to 2, got nan",
        ),
        # An error that UTF-8 cannot encode would never be posted, so the job would not end.
        (
            {"prompt": "x", "enable_validation": "\ud800"},
            'input.enable_validation must be true or false, got "\\ud800"',
        ),
        ("hello", "input must be an object with prompt, messages, openai_input"),
    ],
    ids=["empty", "nan", "surrogate", "string"],
)
def test_bad_job_fails_and_the_next_is_served(worker: Worker, job_input: Any, message: str) -> None:
    # R50
    bad = worker.plane.submit(job_input)
    assert bad.error().startswith(message)
    assert set(bad.done[0]) == {"error"}
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    assert worker.process.poll() is None


def test_bad_openai_call_fails_with_the_error_object_in_a_string(worker: Worker) -> None:
    # R53
    bad = worker.plane.submit({"openai_route": "/v1/completions", "openai_input": {"prompt": 5}})
    assert json.loads(bad.error()) == {
        "error": {
            "message": "Invalid prompt format",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": 400,
        }
    }


def test_engine_failure_is_one_string(worker: Worker) -> None:
    # R50
    bad = worker.plane.submit(streamed("fail"))
    assert bad.error() == "out of luck"
    assert set(bad.done[0]) == {"error"}
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"


@pytest.mark.long_except("generator")
def test_jobs_run_concurrently(worker: Worker) -> None:
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    jobs = [worker.plane.submit(SLOW) for _ in range(SLOTS)]
    outputs = [answer(job) for job in jobs]
    assert [output["choices"][0]["text"] for output in outputs] == ["so " * 10] * SLOTS
    assert all(output["timings"]["generate_ms"] > 400 for output in outputs)
    # No job waited for a slot, which would take as long as another job runs.
    assert all(output["timings"]["queue_ms"] < 400 for output in outputs)
    # One more than the slots, so that no slot is idle between jobs.
    sizes = [int(q["batch_size"]) for path, q in worker.plane.queries if path == "job-take-batch"]
    assert max(sizes) == SLOTS + 1


def run_until_stopped(worker: Worker, count: int) -> list[Job]:
    """Return running jobs: a job that was submitted later has already run."""
    jobs = [worker.plane.submit(streamed("hang")) for _ in range(count)]
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    return jobs


def check_all_slots_are_free(worker: Worker) -> None:
    jobs = [worker.plane.submit(SLOW) for _ in range(SLOTS)]
    assert all(answer(job)["timings"]["queue_ms"] < 5000 for job in jobs)


@pytest.mark.long_except("aggregate")
def test_stopped_jobs_free_their_slots_and_are_not_reported(worker: Worker) -> None:
    # R31
    jobs = run_until_stopped(worker, SLOTS - 1)
    worker.plane.stop(*jobs)
    check_all_slots_are_free(worker)
    assert [job.done for job in jobs] == [[]] * len(jobs)


def test_jobs_stopped_while_a_post_is_under_way_free_their_slots(generator_worker: Worker) -> None:
    # R31: the SDK is not inside our generator at that moment, so it only drops the job.
    jobs = [generator_worker.plane.submit(streamed("hang"), hold=True) for _ in range(SLOTS)]
    for job in jobs:
        job.wait_streaming()
    generator_worker.plane.stop(*jobs)
    check_all_slots_are_free(generator_worker)
    assert [job.done for job in jobs] == [[]] * SLOTS


@pytest.mark.long_except("generator")
def test_job_is_rerun_after_the_engine_is_killed(
    worker: Worker, hosts_of: Callable[[int], list[int]]
) -> None:
    # R50
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    # In generator mode too, because no output was sent yet.
    job = worker.plane.submit({"prompt": "long"})
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    (host,) = hosts_of(worker.pid)
    os.kill(host, signal.SIGKILL)
    assert text(job) == "so " * 10
    assert worker.process.poll() is None


def test_started_stream_fails_when_the_engine_is_killed(
    generator_worker: Worker, hosts_of: Callable[[int], list[int]]
) -> None:
    worker = generator_worker
    job = worker.plane.submit(streamed("hang"))
    job.wait_streaming()
    (host,) = hosts_of(worker.pid)
    os.kill(host, signal.SIGKILL)
    assert job.error() == (
        "the engine process was killed by SIGKILL while the request was running on it"
    )
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"


@pytest.mark.long_except("aggregate")
def test_job_that_ran_during_three_crashes_fails_and_others_do_not(worker: Worker) -> None:
    poison = worker.plane.submit({"prompt": "crash"})
    neighbours = [worker.plane.submit({"prompt": "long"}) for _ in range(SLOTS - 1)]
    assert poison.error() == (
        "the job was running at 3 crashes of the engine in a row and is not tried again; the last "
        "time: the engine process was killed by SIGSEGV while the request was running on it"
    )
    assert [text(each) for each in neighbours] == ["so " * 10] * (SLOTS - 1)
    assert worker.process.poll() is None


def events(body: str) -> list[str]:
    return [event.data for event in SSEDecoder().iter_bytes(iter([body.encode()]))]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_openai_stream(worker: Worker, route: str) -> None:
    # R29, R44
    turns = [{"role": "user", "content": "hello"}]
    body = {"prompt": "hello"} if route == "/v1/completions" else {"messages": turns}
    job = worker.plane.submit({"openai_route": route, "openai_input": {**body, "stream": True}})
    output = job.output()
    if isinstance(output, list):
        assert output == job.streamed
        assert len(output) > 2
        # Each post has complete events, so that a client may decode it separately.
        events_by_post = [event for post in output for event in events(post)]
        assert events_by_post == events("".join(output))
        output = "".join(output)
    assert isinstance(output, str)
    *chunks, done = events(output)
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    expected = [
        choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices
    ]
    assert "".join(map(str, expected)) == "Hello world"


def test_openai_call_and_models(worker: Worker) -> None:
    # R44
    call = worker.plane.submit(
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "hello"}}
    )
    assert answer(call)["choices"][0]["text"] == "Hello world"
    models = worker.plane.submit({"openai_route": "/v1/models", "openai_input": {}})
    assert answer(models)["data"][0]["id"] == "script"


def test_logs_are_json_and_the_platform_is_pinged(worker: Worker) -> None:
    # R55
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    for line in worker.stderr.splitlines():
        assert "event" in json.loads(line)
    assert any(path == "ping" for path, _ in worker.plane.queries)


def test_no_text_and_no_key_is_logged_and_a_job_has_its_id(worker: Worker) -> None:
    # R52, R55: at our most talkative level; the SDK's own would print jobs and answers.
    mark = "xyzzy-prompt"
    odd = {"prompt": f"fine {mark}", "sampling_params": {"logit_bias": {"1": 5}, mark: mark}}
    job = worker.plane.submit(odd)
    assert mark in text(job)
    assert worker.plane.submit({"prompt": f"fail {mark}"}).error() == "out of luck"
    assert mark in worker.plane.submit({"prompt": "x", "enable_validation": mark}).error()
    for expected in (worker.stdout, worker.stderr):
        assert mark not in expected
        assert API_KEY not in expected
    warned = [line for line in map(json.loads, worker.stderr.splitlines()) if "job_id" in line]
    assert {line["job_id"] for line in warned if "logit_bias" in line["event"]} >= {job.id}


@pytest.mark.long_except("generator")
@pytest.mark.parametrize(("mode", "terminate"), [("aggregate", os.kill), ("generator", os.killpg)])
def test_sigterm_lets_the_running_job_finish(
    mode: str, terminate: Callable[[int, int], None], start_worker: WorkerFactory
) -> None:
    # Docker signals only the worker; Ctrl-C and some supervisors signal the process group.
    worker = start_worker(mode)
    job = worker.plane.submit(streamed("long"))
    # The job is running, because a later job has already run.
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    assert not job.finished.is_set()
    terminate(worker.pid, signal.SIGTERM)
    assert text(job) == "so " * 10
    assert worker.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["aggregate", "generator"])
def test_worker_without_an_engine_exits_and_keeps_no_job(
    mode: str, start_worker: WorkerFactory, hosts_of: Callable[[int], list[int]]
) -> None:
    worker = start_worker(mode, ENGINE_DOWN_EXIT_S="0.5")
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    job = worker.plane.submit({"prompt": "hang"})
    assert text(worker.plane.submit({"prompt": "fine"})) == "fine"
    # The engine's script can no longer be loaded.
    worker.script.write_text("{")
    (host,) = hosts_of(worker.pid)
    os.kill(host, signal.SIGKILL)
    assert worker.wait() == 1
    assert not alive(worker.pid)
    # The worker posts no result, so that the platform gives the job to another worker.
    assert job.done == []
    assert "the worker ends with exit code 1: the engine could not be started" in worker.stderr


@pytest.mark.long_except("aggregate")
@pytest.mark.parametrize("mode", ["aggregate", "generator"])
def test_worker_whose_model_cannot_be_loaded_exits_and_takes_no_job(
    mode: str, start_worker: WorkerFactory, tmp_path: Path
) -> None:  # R69
    (tmp_path / "damaged.json").write_text("{")
    worker = start_worker(mode, MODEL_PATH=str(tmp_path / "damaged.json"))
    job = worker.plane.submit({"prompt": "fine"})
    assert worker.wait() == 1
    assert not alive(worker.pid)
    paths = {path for path, _ in worker.plane.queries}
    assert paths.isdisjoint({"job-take", "job-take-batch"})
    assert job.done == []
    [ping] = [query for path, query in worker.plane.queries if path == "ping"]
    assert ping["status"] == "unhealthy"
    assert "damaged.json is not a script" in ping["reason"]


def alive(group: int) -> bool:
    """Return whether a process of the group is still alive after a grace period."""
    waited = threading.Event()
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        waited.wait(WAIT_S / 1000)
    return True

"""SDK 2 of RunPod, in an environment of its own: this project's worker, and handlers of users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_user_handler import HandlerServer
from tests.acceptance.workers.processes import WAIT_S, Platform, SDKWorker, wait_until_true

ENVIRONMENT = Path(__file__).parents[1] / "sdk2" / ".venv"
PYTHON = str(ENVIRONMENT / "bin" / "python")
MODES = ("aggregate", "generator")
ANSWERS: list[dict[str, Any]] = [
    {"when": "hang", "pieces": ["again", {"hang_s": 600}]},
    {"pieces": ["He", "llo", " wor", "ld"], "delay_ms": 30},
]
HANDLER = """\
import runpod

def handler(job):
    if "error" in job["input"]:
        print("about to fail", flush=True)
        raise ValueError(job["input"]["error"])
    return runpod.__version__

runpod.serverless.start({"handler": handler})
"""
GENERATOR = """\
import runpod

def handler(job):
    yield from job["input"]["words"]
    yield runpod.__version__

runpod.serverless.start({"handler": handler, "return_aggregate_stream": True})
"""
PRESTART = """\
import runpod

@runpod.serverless.register_prestart_hook
def load():
    raise RuntimeError("the weights are missing")

runpod.serverless.start({"handler": lambda job: 1})
"""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(
        tmp_path_factory.mktemp("platform"), LOCAL_WORKER="off", LOG_LEVEL="DEBUG", POLL_HOLD_S="1"
    )
    yield platform
    platform.close()


def start_worker(
    platform: Platform, endpoint: str, folder: Path, script: dict[str, Any], **environment: str
) -> SDKWorker:
    """Start this project's worker with SDK 2, as the only worker of its endpoint."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    # The SDK runs its early checks, and sets its marker, only for workers with an endpoint.
    settings = {"MODEL_PATH": str(path), "RUNPOD_ENDPOINT_ID": endpoint, **environment}
    return SDKWorker(platform, endpoint, folder, ["-m", "handler"], settings, PYTHON)


@pytest.fixture(scope="module")
def workers(
    platform: Platform, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, SDKWorker]]:
    script = {"answers": ANSWERS, "slots": 1}
    workers = {
        mode: start_worker(platform, mode, tmp_path_factory.mktemp(mode), script, STREAM_MODE=mode)
        for mode in MODES
    }
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture(params=MODES)
def worker(request: pytest.FixtureRequest, workers: dict[str, SDKWorker]) -> SDKWorker:
    """Each of the workers."""
    return workers[request.param]


def text_of(output: Any) -> str:
    """Return the text of a job's JSON object, which is the last output of a generator."""
    final = output[-1] if isinstance(output, list) else output
    return str(final["choices"][0]["text"])


@pytest.mark.long
def test_own_worker_answers_and_streams(platform: Platform, worker: SDKWorker) -> None:
    job = platform.run(worker.endpoint, {"prompt": "hello"})
    assert text_of(job.output()) == "Hello world"
    job_input = {"prompt": "hello", "sampling_params": {"stream": True}}
    job = platform.run(worker.endpoint, job_input)
    output = job.output()
    assert text_of(output) == "Hello world"
    if worker.endpoint == "generator":
        assert job.read_stream() == output
        assert len(output) > 2
    else:
        assert output["choices"][0]["deltas"] == ["He", "llo", " wor", "ld"]
    assert "Version 2." in worker.log


@pytest.mark.long
def test_cancel_frees_the_slot_of_an_own_worker(platform: Platform, worker: SDKWorker) -> None:
    job_input = {"prompt": "hang", "sampling_params": {"stream": True}}
    job = platform.run(worker.endpoint, job_input).wait_until_started()
    if worker.endpoint == "generator":
        wait_until_true(lambda: job.call("stream")["stream"])
    assert job.call("cancel", "POST")["status"] == "CANCELLED"
    # The worker has one slot, which the cancelled job would hold for ten minutes.
    assert text_of(platform.run(worker.endpoint, {"prompt": "hello"}).output()) == "Hello world"
    assert job.status() == "CANCELLED"


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("checks", ["checked", "unchecked"])
def test_own_worker_whose_model_cannot_be_loaded_exits_and_takes_no_job(
    platform: Platform, tmp_path: Path, checks: str, mode: str
) -> None:  # R69
    endpoint = f"broken-{checks}-{mode}"
    environment = {"STREAM_MODE": mode}
    if checks == "unchecked":
        # The SDK reports nothing then, and the worker ends itself.
        environment["RUNPOD_SKIP_FITNESS_CHECKS"] = "true"
    job = platform.run(endpoint, {"prompt": "hello"})
    script = {"load_error": "the file is broken"}
    worker = start_worker(platform, endpoint, tmp_path, script, **environment)
    try:
        assert worker.process.wait(WAIT_S) == 1
    finally:
        worker.close()
    health = platform.client.get(f"/v2/{endpoint}/health").json()
    reasons = [each["reason"] for each in health.get("unhealthyWorkers", [])]
    if checks == "checked":
        assert reasons == ["model_is_loaded: RuntimeError: the file is broken"]
        assert "the worker takes no job: the file is broken" in worker.log
    else:
        assert reasons == []
        *_, last_line = worker.log.splitlines()
        assert "the worker ends with exit code 1: the file is broken" in last_line
    assert job.status() == "IN_QUEUE"
    assert f"/v2/{endpoint}/job-take" not in platform.log


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "explanation"),
    [
        # The SDK reports nothing without a key.
        ("", "; its last line: Fitness check failed: model_is_loaded | "),
        ("secret-1", " after it reported: model_is_loaded: "),
    ],
    ids=["no key", "key"],
)
def test_health_has_exit_code_and_reason_of_an_own_worker_that_ended(
    tmp_path: Path, key: str, explanation: str
) -> None:  # R69
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"load_error": "the file is broken"}))
    platform = Platform(
        tmp_path,
        MODEL_PATH=str(script),
        LOCAL_WORKER="off",
        WORKERS="1",
        WORKER_COMMAND=f"{PYTHON} -m handler",
        QUEUE_DELAY_S="0",
        **({"API_KEYS": key} if key else {}),
    )
    platform.client.headers["Authorization"] = f"Bearer {key or 'any'}"
    try:
        job = platform.run("default", {"prompt": "hello"})

        def reason() -> str:
            health = platform.client.get("/v2/default/health").json()
            reasons = [each["reason"] for each in health.get("unhealthyWorkers", [])]
            return next((each for each in reasons if "exited" in each), "")

        expected = f"it exited with code 1{explanation}RuntimeError: the file is broken"
        assert wait_until_true(reason) == expected
        assert job.status() == "IN_QUEUE"
    finally:
        platform.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandlerServer]:
    server = HandlerServer(
        tmp_path_factory.mktemp("handler"),
        GENERATOR,
        *("--python", str(ENVIRONMENT)),
        POLL_HOLD_S="0.5",
    )
    yield server
    server.close()


def test_generator_of_a_user_streams_its_outputs(server: HandlerServer) -> None:
    if (server.project / "handler.py").read_text() != GENERATOR:
        server.edit(GENERATOR)
    job = server.run(words=["one", "zwö"])
    assert job["output"][:2] == ["one", "zwö"]
    assert job["output"][2].startswith("2.")
    stream = server.call("stream", job["id"])
    assert [each["output"] for each in stream["stream"]] == job["output"]


@pytest.mark.long
def test_handler_of_a_user_returns_and_its_failure_has_its_output(server: HandlerServer) -> None:
    server.edit(HANDLER)
    assert server.run()["output"].startswith("2.")
    failed = json.loads(server.run(error="the input is wrong")["error"])
    assert failed["error_message"] == "the input is wrong"
    assert failed["logs"] == "about to fail\n"


@pytest.mark.long
def test_job_fails_with_the_reason_of_a_prestart_hook(server: HandlerServer) -> None:
    server.edit(PRESTART)
    failure = json.loads(server.run()["error"])
    assert failure["event"] == "prestart_failed"
    assert failure["error_message"] == "the weights are missing"
    # The next save replaces the worker that has ended.
    server.edit(HANDLER)
    assert server.run()["output"].startswith("2.")

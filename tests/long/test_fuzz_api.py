"""Generate 10,000 requests from the server's own description: none causes a server error."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import EmulatorProcess, run_emulator

REQUESTS = 10_000
# The same requests in every run; another seed generates other requests.
SEED = 1
# Cases per operation and round, for valid and for invalid requests each.
CASES = 15
# Short hold times: the server ends held requests quickly.
SETTINGS = {
    "POLL_HOLD_S": "0.02",
    "RATE_LIMIT_CHAT": "off",
    "STREAM_HOLD_S": "0.01",
    "WORKER_GRACE_S": "0.1",
    "LEASE_S": "1",
    "MAX_JOBS": "1000000",
    "MAX_BODY_MB": "1",
    "WEBHOOK_TRIES": "1",
    "LOG_LEVEL": "INFO",
}
# Only workers that the server itself has started have a log, and this server starts none; its own
# worker has no route for DELETE, and it has no handler whose tests a job could join.
WITHOUT_EXAMPLE = {
    "POST /console/jobs/{job_id}/test",
    "GET /v2/serverless/{endpoint}/workers/{worker}/logs",
    "DELETE /v2/{endpoint}/openai/v1/{route}",
}
ANSWER_S = 20.0
FORM = "multipart/form-data"
# A prompt that keeps its slot, so that batches with it never complete.
ENDLESS_PROMPT = "wait for ever"
# Server errors that a request may cause deliberately, with their types.
ALLOWED = {503: "service_unavailable_error", 504: "timeout_error"}
# These log errors for unreachable webhooks, duplicate worker names and unhealthy workers.
LOGGERS_WITH_ERRORS = {
    "emulator.runpod.webhooks",
    "emulator.runpod.worker_registry",
    "emulator.runpod.worker_routes",
}


def examples(bodies: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the content type and body of each example of a request."""
    for media_type, content in bodies.items():
        if "examples" in content:
            yield from ((media_type, each["value"]) for each in content["examples"].values())
        else:
            yield media_type, content.get("example", {})


class Fuzzer:
    """Sends requests and counts the statuses; a forbidden status fails the test."""

    def __init__(self, server: EmulatorProcess) -> None:
        self._url = f"http://127.0.0.1:{server.port}"
        self._session = requests.Session()
        self._description = self._session.get(f"{self._url}/openapi.json", timeout=ANSWER_S).json()
        self.statuses: Counter[int] = Counter()
        # The successful responses of each operation, by its label in the description.
        self.reached: Counter[str] = Counter()
        # Existing jobs, so that not every request about a job returns 404.
        self._jobs: deque[str] = deque(["none"], maxlen=50)
        self._ids = {
            "file_id": self._file(),
            "batch_id": self._batch(),
            "response_id": self._response(),
        }

    def operations(self) -> Iterator[APIOperation]:  # type: ignore[type-arg]
        schema = schemathesis.openapi.from_dict(self._description)
        for result in schema.get_all_operations():
            assert isinstance(result, Ok), result
            yield result.ok()

    def ask_examples(self) -> None:
        """Send the examples of each operation; all of them must succeed."""
        for path, methods in self._description["paths"].items():
            for method, operation in methods.items():
                if f"{method.upper()} {path}" in WITHOUT_EXAMPLE:
                    continue
                bodies = operation.get("requestBody", {}).get("content", {"application/json": {}})
                for media_type, body in examples(bodies):
                    options: dict[str, Any] = {"headers": {"content-type": media_type}}
                    if media_type == FORM:
                        options = {"data": dict(body), "files": {"file": body["file"]}}
                        del options["data"]["file"]
                    elif "input_file_id" in body:
                        options["data"] = json.dumps(body | {"input_file_id": self._file()})
                    elif "requestBody" in operation:
                        options["data"] = json.dumps(body)
                    response = self._session.request(
                        method,
                        self._url + path.format(**self._places(path, operation["parameters"])),
                        timeout=ANSWER_S,
                        **options,
                    )
                    assert response.status_code < 300, (method, path, media_type, response.text)
                    self.reached[f"{method.upper()} {path}"] += 1

    def _places(self, path: str, parameters: list[dict[str, Any]]) -> dict[str, str]:
        """Return values for the parameters of a path that name existing objects."""
        # Workers use another endpoint: the local worker serves the default one.
        values = {"endpoint": "other" if "{worker}" in path else "default", "worker": "example"}
        # A route that no other route of the server shadows, and that the worker answers.
        values["route"] = "models"
        for each in parameters:
            if each["name"] == "job_id":
                values["job_id"] = self._failed_job()
            elif each["name"] == "file_id":
                values["file_id"] = self._file()
            elif each["name"] == "batch_id":
                values["batch_id"] = self._batch()
            elif each["name"] == "response_id":
                values["response_id"] = self._response()
            elif "enum" in each["schema"]:
                values[each["name"]] = each["schema"]["enum"][0]
        return values

    def _failed_job(self) -> str:
        """Return the id of a failed job: all operations accept a job in this state."""
        body = {"input": {"prompt": ""}}
        job = self._session.post(f"{self._url}/run", json=body, timeout=ANSWER_S).json()
        job_id = str(job["id"])
        url = f"{self._url}/status-sync/{job_id}"
        assert self._session.get(url, timeout=ANSWER_S).json()["status"] == "FAILED"
        return job_id

    def _file(self) -> str:
        """Return the id of a file with one request that is never answered."""
        body = {"prompt": ENDLESS_PROMPT}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}
        url, form = f"{self._url}/v1/files", {"purpose": "batch"}
        files = {"file": json.dumps(line)}
        response = self._session.post(url, data=form, files=files, timeout=ANSWER_S)
        return str(response.json()["id"])

    def _batch(self) -> str:
        """Return the id of a cancelled batch, which may be cancelled again."""
        body = {"endpoint": "/v1/completions", "completion_window": "24h"}
        url = f"{self._url}/v1/batches"
        request = body | {"input_file_id": self._file()}
        response = self._session.post(url, json=request, timeout=ANSWER_S)
        batch_id = str(response.json()["id"])
        self._session.post(f"{url}/{batch_id}/cancel", timeout=ANSWER_S)
        return batch_id

    def _response(self) -> str:
        """Return the id of a background response, which all operations accept."""
        body: Any = {"input": "hi", "background": True}
        response = self._session.post(f"{self._url}/v1/responses", json=body, timeout=ANSWER_S)
        return str(response.json()["id"])

    def ask(self, case: Any) -> None:
        """Send a case unchanged, and damaged in several ways."""
        avoid_long_waits(case)
        if "job_id" in case.path_parameters and sum(self.statuses.values()) % 3:
            case.path_parameters["job_id"] = self._jobs[0]
            if "endpoint" in case.path_parameters:
                case.path_parameters["endpoint"] = "default"
            self._jobs.rotate()
        for name in {"file_id", "batch_id", "response_id"} & case.path_parameters.keys():
            if sum(self.statuses.values()) % 3:
                case.path_parameters[name] = self._ids[name]
        request = requests.Request(**case.as_transport_kwargs(base_url=self._url)).prepare()
        for damaged in damage(request):
            response = self._session.send(damaged, timeout=ANSWER_S)
            status = response.status_code
            self.statuses[status] += 1
            if status < 300:
                self.reached[case.operation.label] += 1
                if case.path == "/run":
                    self._jobs.append(response.json()["id"])
            if status < 500:
                continue
            error_type = json.loads(response.content)["error"]["type"]
            sent = damaged.method, damaged.url, damaged.headers, damaged.body
            assert ALLOWED.get(status) == error_type, (sent, status, response.content)


def damage(request: requests.PreparedRequest) -> Iterator[requests.PreparedRequest]:
    """Yield a request, then copies with damage that a schema cannot describe.

    Generating a case takes twenty times as long as sending it.
    """
    yield request
    body = request.body.encode() if isinstance(request.body, str) else request.body
    if isinstance(body, bytes) and body:
        for content in (
            body[: -(len(body) // 2) or None],
            body + body,
            b"[" + body,
            b"\xff" + body,
        ):
            damaged = request.copy()
            damaged.prepare_body(content, None)
            yield damaged
    for headers in (
        {"content-type": "text/plain"},
        {"x-request-id": "a\tb" * 100, "authorization": "Bearer \xff"},
        {"expect": "100-continue", "connection": "close"},
    ):
        damaged = request.copy()
        damaged.headers.update(headers)
        yield damaged


def avoid_long_waits(case: Any) -> None:
    """Change a case so that it does not wait for a worker that does not exist."""
    parameters = case.path_parameters
    is_held = case.path.endswith(("/runsync", "/status-sync/{job_id}"))
    if is_held or "/openai/v1/" in case.path:
        if "endpoint" in parameters:
            parameters["endpoint"] = "default"
        wait = str(case.query.get("wait", 90_000))
        case.query["wait"] = "1000" if wait.isdigit() and int(wait[:9]) > 1_000 else wait
    if case.path.endswith("/job-stop/{worker}"):
        # The request is held while the worker has jobs, so use a worker that takes no jobs.
        parameters["worker"] = "listener"


def fuzz_operation(
    fuzzer: Fuzzer, operation: Any, mode: GenerationMode, count: int, round_: int
) -> None:
    @seed(f"{SEED} {round_} {operation.label} {mode.value}")
    @settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        fuzzer.ask(case)

    fuzz()


@pytest.mark.timeout(900)
async def test_no_request_is_the_servers_fault(script: ScriptFactory) -> None:
    print(f"seed {SEED}")  # noqa: T201
    hang = {"when": ENDLESS_PROMPT, "pieces": ["a", {"hang_s": 3600}]}
    path = script(hang, {"pieces": ["yes", " it", " is"]}, slots=4)
    async with run_emulator(SETTINGS | {"MODEL_PATH": str(path)}, "--port", "0") as server:
        await server.wait_until_listening()
        fuzzer = Fuzzer(server)
        operations = list(fuzzer.operations())
        await asyncio.to_thread(fuzzer.ask_examples)
        assert set(fuzzer.reached) == {each.label for each in operations} - WITHOUT_EXAMPLE
        fuzzer.reached.clear()
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        round_ = 0
        while sum(fuzzer.statuses.values()) < REQUESTS:
            round_ += 1
            for operation, mode in itertools.product(operations, modes):
                if mode is GenerationMode.POSITIVE or operation.body or operation.query:
                    count = 1 if "job-stop" in operation.path else CASES
                    await asyncio.to_thread(fuzz_operation, fuzzer, operation, mode, count, round_)
        # The seed fixes the requests but not their timing, so the statuses may differ.
        missed = sorted({each.label for each in operations} - set(fuzzer.reached))
        print(f"{dict(fuzzer.statuses)}; only by their examples: {missed}")  # noqa: T201
        async with server.client() as client:
            assert (await client.get("/health")).json()["status"] == "ok"
            job = await client.post("/runsync", json={"input": {"prompt": "x"}})
            assert job.json()["status"] == "COMPLETED"
        assert "Traceback" not in server.stderr
        lines = [json.loads(line) for line in server.lines]
        assert {line["logger"] for line in lines if line["level"] == "error"} <= LOGGERS_WITH_ERRORS

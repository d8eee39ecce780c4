"""Ten thousand requests made up from the server's own description: none is the server's fault."""

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
# The same requests in every run; another number is another ten thousand.
SEED = 1
# Of one operation at a time, right and wrong ones each.
CASES = 15
# All that the server holds open is let go of quickly.
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
ANSWER_S = 20.0
FORM = "multipart/form-data"
# A prompt that keeps its slot; no more batches are answered while one does.
FOR_EVER = "wait for ever"
# What was asked for: an answer that says why, and no internal error.
ALLOWED = {503: "service_unavailable_error", 504: "timeout_error"}
# Of webhooks that are nobody's, of workers that share a name, and of those that say they are ill.
MAY_COMPLAIN = {
    "emulator.runpod.webhooks",
    "emulator.runpod.worker_registry",
    "emulator.runpod.worker_routes",
}


def examples(bodies: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the content type and body of each example of a request."""
    for label, content in bodies.items():
        if "examples" in content:
            yield from ((label, each["value"]) for each in content["examples"].values())
        else:
            yield label, content.get("example", {})


class Fuzzer:
    """Makes requests, and counts what comes back; what must not come ends the test."""

    def __init__(self, server: EmulatorProcess) -> None:
        self._url = f"http://127.0.0.1:{server.port}"
        self._session = requests.Session()
        self._description = self._session.get(f"{self._url}/openapi.json", timeout=ANSWER_S).json()
        self.statuses: Counter[int] = Counter()
        # Operations that were answered well, as the description calls them.
        self.reached: Counter[str] = Counter()
        # Jobs that are there, so that not every question about one is answered 404.
        self._jobs: deque[str] = deque(["none"], maxlen=50)
        self._kept = {"file_id": self._file(), "batch_id": self._batch()}

    def operations(self) -> Iterator[APIOperation]:  # type: ignore[type-arg]
        schema = schemathesis.openapi.from_dict(self._description)
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            yield found.ok()

    def ask_examples(self) -> None:
        """Send what the description has for each operation, which must be answered well."""
        for path, methods in self._description["paths"].items():
            for method, known in methods.items():
                bodies = known.get("requestBody", {}).get("content", {"application/json": {}})
                for label, body in examples(bodies):
                    sent: dict[str, Any] = {"headers": {"content-type": label}}
                    if label == FORM:
                        sent = {"data": dict(body), "files": {"file": body["file"]}}
                        del sent["data"]["file"]
                    elif "input_file_id" in body:
                        sent["data"] = json.dumps(body | {"input_file_id": self._file()})
                    elif "requestBody" in known:
                        sent["data"] = json.dumps(body)
                    response = self._session.request(
                        method,
                        self._url + path.format(**self._places(path, known["parameters"])),
                        timeout=ANSWER_S,
                        **sent,
                    )
                    assert response.status_code < 300, (method, path, label, response.text)
                    self.reached[f"{method.upper()} {path}"] += 1

    def _places(self, path: str, parameters: list[dict[str, Any]]) -> dict[str, str]:
        """Return what stands in a path: things that there are."""
        # The local worker serves one endpoint, and would be asked to share its jobs with another.
        places = {"endpoint": "other" if "{worker}" in path else "default", "worker": "example"}
        # One that no route of the server's own stands before, and that the worker answers.
        places["route"] = "models"
        for each in parameters:
            if each["name"] == "job_id":
                places["job_id"] = self._failed_job()
            elif each["name"] == "file_id":
                places["file_id"] = self._file()
            elif each["name"] == "batch_id":
                places["batch_id"] = self._batch()
            elif "enum" in each["schema"]:
                places[each["name"]] = each["schema"]["enum"][0]
        return places

    def _failed_job(self) -> str:
        """Return a job that has failed: the one kind of which all may be asked."""
        body = {"input": {"prompt": ""}}
        job = self._session.post(f"{self._url}/run", json=body, timeout=ANSWER_S).json()
        job_id = str(job["id"])
        url = f"{self._url}/status-sync/{job_id}"
        assert self._session.get(url, timeout=ANSWER_S).json()["status"] == "FAILED"
        return job_id

    def _file(self) -> str:
        """Return a file of a request that is never answered."""
        body = {"prompt": FOR_EVER}
        line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}
        url, form = f"{self._url}/v1/files", {"purpose": "batch"}
        files = {"file": json.dumps(line)}
        made = self._session.post(url, data=form, files=files, timeout=ANSWER_S)
        return str(made.json()["id"])

    def _batch(self) -> str:
        """Return a batch that has been cancelled, and so may be again."""
        body = {"endpoint": "/v1/completions", "completion_window": "24h"}
        url = f"{self._url}/v1/batches"
        given = body | {"input_file_id": self._file()}
        made = self._session.post(url, json=given, timeout=ANSWER_S)
        batch_id = str(made.json()["id"])
        self._session.post(f"{url}/{batch_id}/cancel", timeout=ANSWER_S)
        return batch_id

    def ask(self, case: Any) -> None:
        """Send a case as it is, and spoilt in each of the ways."""
        tame(case)
        if "job_id" in case.path_parameters and sum(self.statuses.values()) % 3:
            case.path_parameters["job_id"] = self._jobs[0]
            if "endpoint" in case.path_parameters:
                case.path_parameters["endpoint"] = "default"
            self._jobs.rotate()
        for name in {"file_id", "batch_id"} & case.path_parameters.keys():
            if sum(self.statuses.values()) % 3:
                case.path_parameters[name] = self._kept[name]
        whole = requests.Request(**case.as_transport_kwargs(base_url=self._url)).prepare()
        for spoilt in spoil(whole):
            response = self._session.send(spoilt, timeout=ANSWER_S)
            status = response.status_code
            self.statuses[status] += 1
            if status < 300:
                self.reached[case.operation.label] += 1
                if case.path == "/run":
                    self._jobs.append(response.json()["id"])
            if status < 500:
                continue
            said = json.loads(response.content)["error"]["type"]
            sent = spoilt.method, spoilt.url, spoilt.headers, spoilt.body
            assert ALLOWED.get(status) == said, (sent, status, response.content)


def spoil(whole: requests.PreparedRequest) -> Iterator[requests.PreparedRequest]:
    """Return a request, then the same again with things done to it that a schema cannot say.

    Making a case up takes twenty times as long as sending it.
    """
    yield whole
    body = whole.body.encode() if isinstance(whole.body, str) else whole.body
    if isinstance(body, bytes) and body:
        for content in (
            body[: -(len(body) // 2) or None],
            body + body,
            b"[" + body,
            b"\xff" + body,
        ):
            spoilt = whole.copy()
            spoilt.prepare_body(content, None)
            yield spoilt
    for headers in (
        {"content-type": "text/plain"},
        {"x-request-id": "a\tb" * 100, "authorization": "Bearer \xff"},
        {"expect": "100-continue", "connection": "close"},
    ):
        spoilt = whole.copy()
        spoilt.headers.update(headers)
        yield spoilt


def tame(case: Any) -> None:
    """Keep a case from waiting for what never comes: a worker that is not there."""
    places = case.path_parameters
    waits = case.path.endswith(("/runsync", "/status-sync/{job_id}"))
    if waits or "/openai/v1/" in case.path:
        if "endpoint" in places:
            places["endpoint"] = "default"
        wait = str(case.query.get("wait", 90_000))
        case.query["wait"] = "1000" if wait.isdigit() and int(wait[:9]) > 1_000 else wait
    if case.path.endswith("/job-stop/{worker}"):
        # Held for as long as the worker has jobs, so it must not be one that takes any.
        places["worker"] = "listener"


def fuzzed(fuzzer: Fuzzer, operation: Any, mode: GenerationMode, count: int, round_: int) -> None:
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
    hang = {"when": FOR_EVER, "pieces": ["a", {"hang_s": 3600}]}
    path = script(hang, {"pieces": ["yes", " it", " is"]}, slots=4)
    async with run_emulator(SETTINGS | {"MODEL_PATH": str(path)}, "--port", "0") as server:
        await server.wait_until_listening()
        fuzzer = Fuzzer(server)
        operations = list(fuzzer.operations())
        await asyncio.to_thread(fuzzer.ask_examples)
        assert set(fuzzer.reached) == {each.label for each in operations}
        fuzzer.reached.clear()
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        round_ = 0
        while sum(fuzzer.statuses.values()) < REQUESTS:
            round_ += 1
            for operation, mode in itertools.product(operations, modes):
                if mode is GenerationMode.POSITIVE or operation.body or operation.query:
                    count = 1 if "job-stop" in operation.path else CASES
                    await asyncio.to_thread(fuzzed, fuzzer, operation, mode, count, round_)
        # The seed makes the requests, not the moments at which they come: what is said may differ.
        missed = sorted({each.label for each in operations} - set(fuzzer.reached))
        print(f"{dict(fuzzer.statuses)}; only by their examples: {missed}")  # noqa: T201
        async with server.client() as client:
            assert (await client.get("/health")).json()["status"] == "ok"
            job = await client.post("/runsync", json={"input": {"prompt": "x"}})
            assert job.json()["status"] == "COMPLETED"
        assert "Traceback" not in server.stderr
        lines = [json.loads(line) for line in server.lines]
        assert {line["logger"] for line in lines if line["level"] == "error"} <= MAY_COMPLAIN

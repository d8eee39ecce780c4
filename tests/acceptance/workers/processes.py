"""The server and SDK workers as processes, and a client with the requests of RunPod's clients."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tests.integration.emulator.serving import _SSL_WITHOUT_CERTIFICATES
from tests.integration.handler.control_plane import clean_environment, variables
from tests.leftovers import outlives_test
from tests.waiting import wait_until_blocking

T = TypeVar("T")

HANDLERS = Path(__file__).with_name("handlers.py")
WAIT_S = 50.0
POLL_INTERVAL_S = 0.05
_RUNNING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")


def wait_until_true(check: Callable[[], T | None], wait_s: float = WAIT_S) -> T:
    """Return the first true value of a check."""
    return wait_until_blocking(check, wait_s, POLL_INTERVAL_S)


class Platform:
    """`python -m emulator`; a restart keeps its port and its jobs."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        (folder / "home").mkdir()
        self._log = folder / "server.log"
        self._settings = {
            "ENGINE": "scripted",
            "LOG_FORMAT": "json",
            "JOB_DB": str(folder / "jobs.sqlite3"),
            **settings,
        }
        self.port = 0
        self.start()

    @outlives_test()
    def start(self) -> None:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "emulator", "--port", str(self.port)],
                env=clean_environment(self._folder / "home", self._settings),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            self.port = int(wait_until_true(lambda: _RUNNING.search(self.log))[1])
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            verify=_SSL_WITHOUT_CERTIFICATES,
            timeout=WAIT_S,
        )

    @property
    def log(self) -> str:
        """The log of the server since its last start."""
        return self._log.read_text()

    def count_stored_jobs(self, status: str) -> int:
        """Return how many jobs the database has in this state; leases are stored with a delay."""
        with closing(sqlite3.connect(self._settings["JOB_DB"])) as database:
            query = "SELECT count(*) FROM jobs WHERE status = ?"
            return int(database.execute(query, (status,)).fetchone()[0])

    def kill(self) -> None:
        """Kill the server, as a power failure would."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the server, and check its exit code."""
        self.client.close()
        self.process.terminate()
        try:
            assert self.process.wait(WAIT_S) == 0, self.log[-2000:]
        finally:
            self.process.kill()

    def url(self, endpoint: str) -> str:
        return f"http://127.0.0.1:{self.port}/v2/{endpoint}"

    # -- the client's side ----------------------------------------------------------------------

    def run(self, endpoint: str, job_input: Any) -> Job:
        """Send a job with this input."""
        return self.send(endpoint, {"input": job_input})

    def send(self, endpoint: str, body: dict[str, Any]) -> Job:
        """Send a job."""
        response = self.client.post(f"/v2/{endpoint}/run", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["status"] == "IN_QUEUE"
        return Job(self, endpoint, response.json()["id"])

    def call_sync(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its end in one call."""
        response = self.client.post(f"/v2/{endpoint}/runsync", json=body)
        assert response.status_code == 200, response.text
        payload: dict[str, Any] = response.json()
        return payload


class Job:
    """A job, by the requests of its client."""

    def __init__(self, platform: Platform, endpoint: str, job_id: str) -> None:
        self._platform = platform
        self.endpoint = endpoint
        self.id = job_id

    def call(self, operation: str, method: str = "GET", **query: str) -> dict[str, Any]:
        response = self._platform.client.request(
            method, f"/v2/{self.endpoint}/{operation}/{self.id}", params=query
        )
        assert response.status_code == 200, response.text
        payload: dict[str, Any] = response.json()
        return payload

    def status(self) -> str:
        return str(self.call("status")["status"])

    def wait_until_started(self) -> Job:
        """Wait until a worker has taken the job."""
        wait_until_true(lambda: self.status() == "IN_PROGRESS")
        return self

    def wait_for_end(self) -> dict[str, Any]:
        """Wait until the job has ended; return the response of `/status`."""
        # One request that the server holds costs less than many.
        wait_until_true(lambda: self.call("status-sync", wait="10000")["status"] in _FINAL)
        return self.call("status")

    def output(self) -> Any:
        """Wait until the job has completed; return its output."""
        ended = self.wait_for_end()
        assert ended["status"] == "COMPLETED", ended
        return ended["output"]

    def error(self) -> str:
        """Wait until the job has failed; return its error."""
        ended = self.wait_for_end()
        assert ended["status"] == "FAILED", ended
        error = ended["error"]
        assert type(error) is str
        return error

    def read_stream(self) -> list[Any]:
        """Poll the stream until the job has ended, as RunPod's clients do; return its outputs."""
        outputs: list[Any] = []
        while True:
            response = self.call("stream")
            outputs += [each["output"] for each in response["stream"]]
            if response["status"] in _FINAL:
                return outputs


class SDKWorker:
    """A program that calls `runpod.serverless.start`, in a process group of its own."""

    def __init__(
        self,
        platform: Platform,
        endpoint: str,
        folder: Path,
        command: list[str],
        environment: Mapping[str, str],
        python: str = sys.executable,
    ) -> None:
        self._folder = folder
        self._python = python
        self._platform = platform
        self.endpoint = endpoint
        self._command = command
        self._environment = environment
        self.notes = folder / "notes"
        (folder / "home").mkdir()
        self.start()

    @outlives_test()
    def start(self) -> None:
        """Start the worker, or another one under the same name after its end."""
        pod_variables = variables(self._platform.url(self.endpoint))
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._python, *self._command],
                env=clean_environment(
                    self._folder / "home",
                    {
                        **pod_variables,
                        "RUNPOD_POD_ID": self.endpoint,
                        "LOG": str(self.notes),
                        **self._environment,
                    },
                ),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups: list[int] = [*getattr(self, "_groups", []), self.process.pid]

    @property
    def log(self) -> str:
        """The output of the worker."""
        return (self._folder / "log").read_text()

    def count_notes(self, event: str, name: str) -> int:
        """Return how often the handler noted an event for the job with this name."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return sum(line.split()[:2] == [event, name] for line in lines)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker only: its heartbeat process runs on."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """End the worker and start another one."""
        self._end_groups()
        self.start()

    def _end_groups(self) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()
        self._groups = []

    def close(self) -> None:
        """End the worker and its child processes."""
        self._end_groups()

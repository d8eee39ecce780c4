"""The local RunPod and SDK workers as processes, and a client that speaks as RunPod's own do."""

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
_RUNNING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")


def becomes(true: Callable[[], T | None], wait_s: float = WAIT_S) -> T:
    """Wait for what another process does; return what it became."""
    return wait_until_blocking(true, wait_s)


class Platform:
    """`python -m emulator`; it keeps its port and its jobs when it is started again."""

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
            self.port = int(becomes(lambda: _RUNNING.search(self.log))[1])
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
        """What the server has logged since it was started."""
        return self._log.read_text()

    def on_disk(self, status: str) -> int:
        """Return how many jobs its database has in this state; leases are there a moment later."""
        with closing(sqlite3.connect(self._settings["JOB_DB"])) as database:
            query = "SELECT count(*) FROM jobs WHERE status = ?"
            return int(database.execute(query, (status,)).fetchone()[0])

    def kill(self) -> None:
        """Let it end as the power does."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, and see that it ends well."""
        self.client.close()
        self.process.terminate()
        try:
            assert self.process.wait(WAIT_S) == 0, self.log[-2000:]
        finally:
            self.process.kill()

    def url(self, endpoint: str) -> str:
        return f"http://127.0.0.1:{self.port}/v2/{endpoint}"

    # -- the client's side ----------------------------------------------------------------------

    def run(self, endpoint: str, given: Any) -> Job:
        """Send a job of this input."""
        return self.send(endpoint, {"input": given})

    def send(self, endpoint: str, body: dict[str, Any]) -> Job:
        """Send a job."""
        answer = self.client.post(f"/v2/{endpoint}/run", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "IN_QUEUE"
        return Job(self, endpoint, answer.json()["id"])

    def call_sync(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its end in one call."""
        answer = self.client.post(f"/v2/{endpoint}/runsync", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


class Job:
    """A job as its client knows it."""

    def __init__(self, platform: Platform, endpoint: str, job_id: str) -> None:
        self._platform = platform
        self.endpoint = endpoint
        self.id = job_id

    def call(self, what: str, method: str = "GET") -> dict[str, Any]:
        answer = self._platform.client.request(method, f"/v2/{self.endpoint}/{what}/{self.id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def status(self) -> str:
        return str(self.call("status")["status"])

    def started(self) -> Job:
        """Wait until a worker has it."""
        becomes(lambda: self.status() == "IN_PROGRESS")
        return self

    def ended(self) -> dict[str, Any]:
        """Wait for its end; return it as `/status` shows it."""
        becomes(lambda: self.status() in _FINAL)
        return self.call("status")

    def output(self) -> Any:
        """Wait for its end, which is a good one."""
        ended = self.ended()
        assert ended["status"] == "COMPLETED", ended
        return ended["output"]

    def error(self) -> str:
        """Wait for its end, which is none; return why."""
        ended = self.ended()
        assert ended["status"] == "FAILED", ended
        error = ended["error"]
        assert type(error) is str
        return error

    def streamed(self) -> list[Any]:
        """Return all that its stream brings, as RunPod's clients read it, to its end."""
        found: list[Any] = []
        while True:
            answer = self.call("stream")
            found += [each["output"] for each in answer["stream"]]
            if answer["status"] in _FINAL:
                return found


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
        """Start it, or another one under its name when it is dead."""
        known = variables(self._platform.url(self.endpoint)) | {"RUNPOD_POD_ID": self.endpoint}
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._python, *self._command],
                env=clean_environment(
                    self._folder / "home",
                    {**known, "LOG": str(self.notes), **self._environment},
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
        """What it has written."""
        return (self._folder / "log").read_text()

    def noted(self, what: str, name: str) -> int:
        """How often something has happened in its handler to the job of a name."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return sum(line.split()[:2] == [what, name] for line in lines)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker alone: its heartbeat lives on."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Make sure that there is a worker again."""
        self._end_groups()
        self.start()

    def _end_groups(self) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.process.wait()
        self._groups = []

    def close(self) -> None:
        """End it and all that it has started."""
        self._end_groups()

"""Containers of one test: start them, read their state, and call the server in one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tests.image.engine import Docker
from tests.ports import free_port
from tests.session_guard import MARK
from tests.waiting import wait_until_blocking

KEY = "a-long-secret"
SERVER = ("python", "-u", "-m", "emulator")
# The options of docs/container.md and deploy/compose.yaml that leave a container no privileges.
HARDENED = (
    *("--read-only", "--tmpfs", "/tmp"),  # noqa: S108 - a folder of the container
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
)
JOB: Mapping[str, Any] = {
    "input": {"prompt": "Once upon a time", "sampling_params": {"max_tokens": 8}}
}
# A worker that answers this job and ends.
ONE_JOB = ("python", "-u", "-m", "handler", "--test_input", json.dumps(JOB))
READY_S = 60.0
_POLL_INTERVAL_S = 0.1


class Container:
    """A started container."""

    def __init__(self, docker: Docker, name: str) -> None:
        self.docker = docker
        self.name = name

    def state(self) -> dict[str, Any]:
        """Return Docker's state of it: `Status`, `ExitCode`, `OOMKilled`, `Health` and more."""
        [described] = json.loads(self.docker.run("inspect", self.name))
        state: dict[str, Any] = described["State"]
        return state

    def logs(self) -> str:
        """Return what it has written to stdout and stderr."""
        return self.docker.run("logs", self.name)

    def execute(self, *command: str) -> str:
        """Run a command in it; return the output."""
        return self.docker.run("exec", self.name, *command)

    def kill(self) -> None:
        """End all its processes by SIGKILL."""
        self.docker.run("kill", "--signal", "KILL", self.name)

    def start_again(self) -> None:
        """Start it with the same command and the same files."""
        self.docker.run("start", self.name)

    def stop(self, limit_s: int = 45) -> float:
        """Stop it as `docker stop` does; return the seconds that it took."""
        started = time.monotonic()
        self.docker.run("stop", "--time", str(limit_s), self.name)
        return time.monotonic() - started

    def wait_for_end(self) -> int:
        """Return its exit code when it has ended."""
        wait_until_blocking(
            lambda: self.state()["Status"] == "exited", READY_S, gap_s=_POLL_INTERVAL_S
        )
        return int(self.state()["ExitCode"])


class Server(Container):
    """A container with the server, which listens on a port of the host's network."""

    def __init__(self, docker: Docker, name: str, port: int) -> None:
        super().__init__(docker, name)
        self.port = port

    def call(self, path: str, body: object = None, key: str | None = KEY) -> httpx2.Response:
        """Send a GET, or a POST with a body."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        method = "GET" if body is None else "POST"
        return httpx2.request(method, url, json=body, headers=headers, timeout=READY_S)

    def wait_until_ready(self) -> None:
        """Wait until /health is 200. Raises AssertionError with the log if the server ends."""
        wait_until_blocking(self._is_ready, READY_S, gap_s=_POLL_INTERVAL_S)

    def run_job(self, job: Mapping[str, Any] = JOB) -> dict[str, Any]:
        """Run a job to its end, and return the response."""
        response = self.call("/runsync", job)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def wait_for_job(
        self, job: str, limit_s: float = READY_S, endpoint: str = "default"
    ) -> dict[str, Any]:
        """Return the state of a job when it has ended."""

        def ended() -> dict[str, Any] | None:
            body: dict[str, Any] = self.call(f"/v2/{endpoint}/status/{job}").json()
            return body if body["status"] not in ("IN_QUEUE", "IN_PROGRESS") else None

        return wait_until_blocking(ended, limit_s, gap_s=_POLL_INTERVAL_S)

    def _is_ready(self) -> bool:
        assert self.state()["Status"] == "running", self.logs()[-3000:]
        try:
            return self.call("/health").status_code == 200
        except httpx2.TransportError:
            return False


class Containers:
    """Starts containers of an image."""

    def __init__(self, docker: Docker) -> None:
        self.docker = docker

    def start(
        self, image: str, *command: str, options: tuple[str | Path, ...] = (), **settings: str
    ) -> Container:
        """Start a container without network, unless the options name one."""
        return Container(self.docker, self._start(image, command, options, settings))

    def start_server(
        self,
        image: str,
        *arguments: str,
        options: tuple[str | Path, ...] = (),
        **settings: str,
    ) -> Server:
        """Start the server with a key, at a free port."""
        port = free_port()
        settings = {"API_KEYS": KEY, "PORT": str(port), **settings}
        options = ("--network", "host", *options)
        name = self._start(image, (*SERVER, *arguments), options, settings)
        return Server(self.docker, name, port)

    def _start(
        self,
        image: str,
        command: tuple[str, ...],
        options: tuple[str | Path, ...],
        settings: Mapping[str, str],
    ) -> str:
        if "--network" not in options:
            options = ("--network", "none", *options)
        # With the mark, a session that is killed ends its containers too.
        marked = {MARK: os.environ[MARK], **settings}
        variables = [each for pair in marked.items() for each in ("--env", "=".join(pair))]
        return self.docker.run("run", "--detach", *options, *variables, image, *command).strip()

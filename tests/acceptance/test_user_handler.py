"""`python -m emulator --handler handler.py` with the real SDK: answers, reloads, and failed starts.

The tests share two servers, each of which reloads its handler when a test saves another one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.pages import blocks, pages
from tests.integration.emulator.processes import build_environment
from tests.integration.emulator.serving import _SSL_WITHOUT_CERTIFICATES
from tests.waiting import PATIENCE, wait_until_blocking

ENDPOINT = "my-project"
WAIT_S = 40 * PATIENCE
POLL_INTERVAL_S = 0.05
# Goals on a quiet machine.
FIRST_ANSWER_S = 5 * PATIENCE
RELOAD_S = 3 * PATIENCE
_LISTENING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT")

PLAIN = """\
import runpod

def handler(job):
    return {"version": VERSION}

runpod.serverless.start({"handler": handler})
"""
GENERATOR = """\
import runpod

def handler(job):
    yield from job["input"]["words"]

runpod.serverless.start({"handler": handler, "return_aggregate_stream": True})
"""
ASYNC_GENERATOR = """\
import runpod

async def handler(job):
    for word in job["input"]["words"]:
        yield word

runpod.serverless.start({"handler": handler, "return_aggregate_stream": True})
"""
PROGRESS = """\
import os, time
import runpod

def handler(job):
    runpod.serverless.progress_update(job, "half of it")
    while not os.path.exists(job["input"]["until"]):
        time.sleep(0.01)
    return "done"

runpod.serverless.start({"handler": handler})
"""
UNSENDABLE = """\
import decimal
import runpod

runs = 0

def handler(job):
    global runs
    if job["input"]["kind"] == "count":
        return runs
    runs += 1
    return {"value": decimal.Decimal(1) if job["input"]["kind"] == "Decimal" else {1}}

runpod.serverless.start({"handler": handler})
"""
UNSENDABLE_CHUNK = """\
import decimal
import runpod

def handler(job):
    yield "one"
    yield decimal.Decimal(2) if job["input"]["odd"] else "two"

runpod.serverless.start({"handler": handler})
"""
RAISING = """\
import runpod

def handler(job):
    raise ValueError("the input is wrong")

runpod.serverless.start({"handler": handler})
"""
CRASHING = """\
import os
import runpod

def handler(job):
    print("about to crash", flush=True)
    os.kill(os.getpid(), 11)

runpod.serverless.start({"handler": handler})
"""
PROCESS_ID = """\
import os
import runpod

def handler(job):
    return os.getpid()

runpod.serverless.start({"handler": handler})
"""
BLOCKING = """\
import os, time
import runpod

def handler(job):
    time.sleep(job["input"]["sleep_s"])
    return os.getpid()

runpod.serverless.start({"handler": handler})
"""
UPLOADING = """\
import runpod
from runpod.serverless.utils import rp_upload

def handler(job):
    with open("image.png", "wb") as image:
        image.write(b"\\x89PNG" * 1_000)
    return rp_upload.upload_image(job["id"], "image.png")

runpod.serverless.start({"handler": handler})
"""
OWN_PACKAGE = """\
import only_in_this_venv, runpod

def handler(job):
    return only_in_this_venv.NAME

runpod.serverless.start({"handler": handler})
"""
NOT_STARTED = (
    "handler.py did not start: it exited with code 0 without starting a worker; it must call "
    'runpod.serverless.start({"handler": handler})'
)


class HandlerServer:
    """The server of one handler's folder, and a client of it."""

    def __init__(self, folder: Path, handler: str, *options: str, **settings: str) -> None:
        self.folder = folder
        self.project = folder / "my project"
        self.project.mkdir(exist_ok=True)
        (folder / "home").mkdir()
        self.save(handler)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "emulator"),
                    *("--handler", "./handler.py", "--port", "0", *options),
                ],
                env=build_environment(
                    {"HOME": str(folder / "home"), "LOG_FORMAT": "console", **settings}
                ),
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            url = wait_until_blocking(lambda: _LISTENING.search(self.log), WAIT_S)[1]
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.client = httpx2.Client(base_url=url, verify=_SSL_WITHOUT_CERTIFICATES, timeout=WAIT_S)

    @property
    def log(self) -> str:
        """Everything that the server has logged."""
        return self._log.read_text()

    def save(self, handler: str) -> None:
        """Replace the handler's file as an editor does."""
        new = self.project / "handler.new"
        new.write_text(handler)
        new.replace(self.project / "handler.py")

    def edit(self, handler: str) -> dict[str, Any]:
        """Save a handler; return its state as soon as its worker has started or failed."""
        before = self.log.count("handler.py changed")
        self.save(handler)
        wait_until_blocking(lambda: self.log.count("handler.py changed") > before, WAIT_S)

        def settled() -> dict[str, Any] | None:
            state: dict[str, Any] = self.health()["handler"]
            return None if state["state"] == "starting" else state

        return wait_until_blocking(settled, WAIT_S, POLL_INTERVAL_S)

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self.client.get("/health").json()
        return health

    def endpoint_health(self) -> dict[str, Any]:
        health: dict[str, Any] = self.client.get(f"/v2/{ENDPOINT}/health").json()
        return health

    def call(self, operation: str, job_id: str, **query: str) -> dict[str, Any]:
        path = f"/v2/{ENDPOINT}/{operation}/{job_id}"
        answer: dict[str, Any] = self.client.get(path, params=query).json()
        return answer

    def send(self, **payload: Any) -> str:
        response = self.client.post(f"/v2/{ENDPOINT}/run", json={"input": payload})
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def finished(self, job_id: str) -> dict[str, Any]:
        """Wait until a job has ended."""

        def ended() -> dict[str, Any] | None:
            # One request that the server holds costs less than many.
            job = self.call("status-sync", job_id, wait="10000")
            return job if job["status"] in _FINAL else None

        wait_until_blocking(ended, WAIT_S)
        return self.call("status", job_id)

    def run(self, **payload: Any) -> dict[str, Any]:
        """Send a job and wait until it has ended."""
        return self.finished(self.send(**payload))

    def processes(self) -> list[int]:
        """Return the processes that have the handler's path among their arguments."""
        path = str(self.project / "handler.py").encode()
        pids = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path in entry.read_bytes().split(b"\0"):
                    pids.append(int(entry.parent.name))
            except OSError:
                continue
        return pids

    def close(self) -> None:
        """Stop the server; it must end well and leave no process."""
        self.client.close()
        self.process.terminate()
        try:
            assert self.process.wait(WAIT_S) == 0, self.log[-2000:]
        finally:
            self.process.kill()
        assert self.processes() == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def plain(version: int) -> str:
    return PLAIN.replace("VERSION", str(version))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandlerServer]:
    server = HandlerServer(
        tmp_path_factory.mktemp("handler"),
        plain(1),
        # One crash is enough, and a replaced worker ends as soon as its last poll does.
        MAX_LOSSES="1",
        MIN_EXECUTION_TIMEOUT_MS="100",
        POLL_HOLD_S="0.5",
    )
    assert server.run()["output"] == {"version": 1}
    yield server
    server.close()


@pytest.mark.timing
def test_first_answer_and_edits_come_soon(tmp_path: Path) -> None:
    started_at = time.monotonic()
    server = HandlerServer(tmp_path, plain(1), POLL_HOLD_S="0.5")
    try:
        server.run()
        assert time.monotonic() - started_at < FIRST_ANSWER_S
        edited_at = time.monotonic()
        server.edit(plain(2))
        assert server.run()["output"] == {"version": 2}
        assert time.monotonic() - edited_at < RELOAD_S
    finally:
        server.close()


def test_endpoint_is_named_after_the_folder(server: HandlerServer) -> None:
    assert f"/v2/{ENDPOINT}" in server.log
    assert f"python    {sys.executable} (the server's own)" in server.log
    # An edit of another test may still be replacing the worker.
    wait_until_blocking(lambda: server.health()["status"] == "ok")
    response = server.client.post("/v1/chat/completions", json={})
    assert response.status_code == 404
    assert f"/v2/{ENDPOINT}/openai/v1" in response.text


@pytest.mark.long
def test_broken_edit_keeps_the_last_worker_until_the_next_save(server: HandlerServer) -> None:
    server.edit(plain(2))
    assert server.run()["output"] == {"version": 2}
    state = server.edit("import a_missing_package\n" + plain(3))
    assert state["state"] == "outdated"
    reason = state["failure"]["reason"]
    assert reason.startswith(
        "it exited with code 1; its last line: ModuleNotFoundError: No module named "
        "'a_missing_package'; it ran with "
    )
    assert reason.endswith(".venv/bin/python -m pip install runpod a_missing_package`")
    assert server.run()["output"] == {"version": 2}
    state = server.edit("def handler(:\n")
    assert "SyntaxError" in state["failure"]["output"]
    assert server.run()["output"] == {"version": 2}
    assert "Traceback (most recent call last):" in server.log
    assert "SyntaxError: invalid syntax; the worker with the code before the change goes on" in (
        server.log
    )
    assert server.edit(plain(4))["failure"] is None
    assert server.run()["output"] == {"version": 4}


def test_handler_of_the_documentation_greets(server: HandlerServer) -> None:
    (page,) = (page for page in pages() if page.name == "handler.md")
    example = blocks(page)
    (handler,) = (block.text for block in example if block.first_line == "# handler.py")
    (command,) = (block.text for block in example if "/my-worker/runsync" in block.first_line)
    job = json.loads(command.split("-d '")[1].rpartition("'")[0])
    server.edit(handler)
    assert server.run(**job["input"])["output"] == {"greeting": "Hello, Ada!"}


@pytest.mark.long
def test_job_is_saved_as_a_test_by_the_console(server: HandlerServer) -> None:
    server.edit(plain(7))
    job_id = server.send(x=1)
    server.finished(job_id)
    path = f"/console/jobs/{job_id}/test"
    saved = server.client.post(path, json={"name": "seventh"})
    file = server.project / "tests.json"
    assert (saved.status_code, saved.json()) == (200, {"file": str(file)})
    assert json.loads(file.read_text())["tests"] == [
        {
            "name": "seventh",
            "input": {"x": 1},
            "expected_status": "COMPLETED",
            "expected_output": {"version": 7},
        }
    ]
    for body, status, reason in (
        ({"name": "seventh"}, 400, "has a test named seventh already"),
        ({"name": " "}, 400, "name must be a non-empty string"),
        ({}, 400, "name must be a non-empty string"),
    ):
        refused = server.client.post(path, json=body)
        assert refused.status_code == status
        assert reason in refused.json()["error"]["message"]
    assert server.client.post("/console/jobs/none/test", json={"name": "x"}).status_code == 404
    file.write_text('{"tests": 1}')
    refused = server.client.post(path, json={"name": "eighth"})
    assert refused.status_code == 400
    assert str(file) in refused.json()["error"]["message"]
    assert file.read_text() == '{"tests": 1}'
    file.unlink()


@pytest.mark.long_except("handler0")
@pytest.mark.parametrize("handler", [GENERATOR, ASYNC_GENERATOR])
def test_generator_streams_its_outputs(server: HandlerServer, handler: str) -> None:
    server.edit(handler)
    job = server.run(words=["one", "zwö"])
    assert (job["status"], job["output"]) == ("COMPLETED", ["one", "zwö"])
    stream = server.call("stream", job["id"])
    assert [each["output"] for each in stream["stream"]] == ["one", "zwö"]


@pytest.mark.long
def test_job_in_progress_ends_with_the_code_it_started_with(
    server: HandlerServer, tmp_path: Path
) -> None:
    server.edit(PROGRESS)
    job_id = server.send(until=str(tmp_path / "until"))
    wait_until_blocking(lambda: server.call("status", job_id).get("output") == "half of it", WAIT_S)
    assert server.edit(RAISING)["state"] == "ready"
    job = server.run()
    assert job["status"] == "FAILED"
    assert "the input is wrong" in job["error"]
    (tmp_path / "until").touch()
    assert server.finished(job_id)["output"] == "done"


@pytest.mark.long
def test_uploaded_image_opens_until_a_reset(server: HandlerServer) -> None:
    server.edit(UPLOADING)
    url = server.run()["output"]
    image = server.client.get(url)
    assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert image.content == b"\x89PNG" * 1_000
    assert server.client.get(url.partition("?")[0]).status_code == 403
    assert not (server.project / "simulated_uploaded").exists()
    server.client.post(f"/v2/{ENDPOINT}/reset")
    assert server.client.get(url).status_code == 404


def test_result_that_cannot_be_sent_fails_the_job_once(server: HandlerServer) -> None:
    # R81: the SDK prints why, and posts nothing.
    server.edit(UNSENDABLE)
    for kind in ("Decimal", "set"):
        job = server.run(kind=kind)
        assert job["status"] == "FAILED"
        reason = f"Object of type {kind} is not JSON serializable"
        assert job["error"] == f"the job's result could not be sent: {reason}"
    assert server.run(kind="count")["output"] == 2


@pytest.mark.long
def test_chunk_that_cannot_be_sent_fails_the_job(server: HandlerServer) -> None:
    server.edit(UNSENDABLE_CHUNK)
    job = server.run(odd=True)
    assert job["status"] == "FAILED"
    reason = "Object of type Decimal is not JSON serializable"
    assert job["error"] == f"a part of the job's stream could not be sent: {reason}"
    job = server.run(odd=False)
    assert (job["status"], job["output"]) == ("COMPLETED", [])
    assert job["message"].startswith("2 chunks were streamed, and /stream has them")
    assert '"return_aggregate_stream": True' in job["message"]


def test_job_that_crashes_its_workers_fails_with_the_signal(server: HandlerServer) -> None:  # R74
    server.edit(CRASHING)
    job = server.run()
    assert job["status"] == "FAILED"
    assert "its worker was killed by SIGSEGV" in job["error"]
    assert "about to crash" in job["error"]


@pytest.mark.long
def test_worker_that_blocks_past_the_execution_timeout_is_stopped_and_replaced(
    server: HandlerServer,
) -> None:
    server.edit(BLOCKING)
    before = server.run(sleep_s=0)["output"]
    body = {"input": {"sleep_s": 600}, "policy": {"executionTimeout": 500}}
    job_id = server.client.post(f"/v2/{ENDPOINT}/run", json=body).json()["id"]
    assert server.finished(job_id)["status"] == "TIMED_OUT"
    assert server.run(sleep_s=0)["output"] != before
    assert "still runs a job that is past its executionTimeout, and is stopped" in server.log


@pytest.mark.long
@pytest.mark.parametrize("how", ["cancel", "ttl"])
def test_worker_that_blocks_past_the_end_of_its_job_is_stopped_and_replaced(
    server: HandlerServer, how: str
) -> None:
    server.edit(BLOCKING)
    before = server.run(sleep_s=0)["output"]
    policy = {"ttl": 10_000} if how == "ttl" else {}
    body = {"input": {"sleep_s": 600}, "policy": policy}
    job_id = server.client.post(f"/v2/{ENDPOINT}/run", json=body).json()["id"]
    if how == "cancel":
        started = re.compile(rf"job {job_id} started.*: Started\.", re.DOTALL)
        wait_until_blocking(lambda: started.search(server.log), WAIT_S)
        server.client.post(f"/v2/{ENDPOINT}/cancel/{job_id}")
    else:
        gone = lambda: server.client.get(f"/v2/{ENDPOINT}/status/{job_id}").status_code == 404  # noqa: E731
        wait_until_blocking(gone, WAIT_S)
    waiting = server.send(sleep_s=0)
    assert server.finished(waiting)["output"] != before
    why = "was cancelled" if how == "cancel" else "is past its ttl"
    assert f"still runs a job that {why}, and is stopped" in server.log


@pytest.mark.long
def test_worker_that_is_killed_is_replaced_and_the_signal_is_logged(
    server: HandlerServer,
) -> None:  # R74
    server.edit(PROCESS_ID)
    pid = server.run()["output"]
    os.kill(pid, signal.SIGKILL)
    wait_until_blocking(
        lambda: "was killed by SIGKILL, as the kernel does when memory runs out" in server.log,
        WAIT_S,
    )
    assert server.run()["output"] != pid


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandlerServer]:
    """A server whose handler has never started."""
    server = HandlerServer(tmp_path_factory.mktemp("failing"), "import runpod\n")
    yield server
    server.close()


@pytest.mark.long_except("segfault")
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        ("def handler(job):\n    return 1\n", NOT_STARTED),
        ("raise SystemExit(0)\n", NOT_STARTED),
        (
            "import os\nos._exit(1)\n",
            "handler.py did not start: it exited with code 1 and printed nothing",
        ),
        (
            "import os\nos.kill(os.getpid(), 11)\n",
            "handler.py did not start: it was killed by SIGSEGV and printed nothing",
        ),
        (
            "import os\nprint('loading weights 90%', flush=True)\nos.kill(os.getpid(), 9)\n",
            "handler.py did not start: it was killed by SIGKILL, as the kernel does when memory "
            "runs out; its last line: loading weights 90%",
        ),
        (
            "import a_missing_package\n",
            "handler.py did not start: it exited with code 1; its last line: "
            "ModuleNotFoundError: No module named 'a_missing_package'",
        ),
    ],
    ids=["no start", "exit 0", "silent exit", "segfault", "killed", "missing package"],
)
def test_handler_that_does_not_start_answers_jobs_with_the_way_it_ended(
    failing: HandlerServer, handler: str, error: str
) -> None:  # R74
    state = failing.edit(handler)
    assert state["state"] == "failed"
    job = failing.run()
    assert job["status"] == "FAILED"
    # What follows the reason of a missing package is how to install it.
    assert job["error"].startswith(error)
    assert error in failing.log
    reason = failing.health()["handler"]["failure"]["reason"]
    assert reason.startswith(error.removeprefix("handler.py did not start: "))
    health = failing.endpoint_health()
    assert health["workers"]["unhealthy"] == 1
    assert reason.startswith(health["unhealthyWorkers"][0]["reason"])
    assert failing.health()["status"] == "degraded"


@pytest.mark.long
def test_pytest_recipe_of_the_documentation(tmp_path: Path) -> None:
    (page,) = (page for page in pages() if page.name == "handler.md")
    project = tmp_path / "my-worker"
    project.mkdir()
    port = str(free_port())
    for block in blocks(page):
        if block.language == "python":
            name = block.first_line.removeprefix("# ")
            (project / name).write_text(block.text.replace("8642", port))
    program = tmp_path / "bin" / "worker-rkllm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m worker_rkllm "$@"\n')
    program.chmod(0o755)
    (tmp_path / "home").mkdir()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        env=build_environment({"HOME": str(tmp_path / "home"), "PATH": path}),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.long
def test_handler_in_a_virtual_environment_of_its_own(tmp_path: Path) -> None:
    venv = tmp_path / "my project" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    # The SDK of this environment, and a module that only the new one has.
    (packages / "sdk.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "only_in_this_venv.py").write_text('NAME = "its own"\n')
    server = HandlerServer(tmp_path, OWN_PACKAGE)
    try:
        assert server.run()["output"] == "its own"
        assert "(the virtual environment .venv of the handler)" in server.log
    finally:
        server.close()


def test_handler_file_that_does_not_exist_is_one_line_and_code_2(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "emulator", "--handler", "./missing.py", "--port", "0"],
        env=build_environment({}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert result.returncode == 2
    assert result.stderr.strip() == "--handler: there is no file missing.py"

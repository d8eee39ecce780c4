"""Handlers of users with each SDK of RunPod in use: crashes, cancels, reloads, two workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_user_handler import ENDPOINT, WAIT_S, HandlerServer
from tests.fork_server.client import PYTHON_PATH
from tests.waiting import wait_until_blocking

TESTS = Path(__file__).parents[1]
# `make test` has these in environments of their own.
OWN_VERSION, PYTHONS = "1.12.0", {"2.0.0rc2": TESTS / "sdk2" / ".venv"}
OLD_VERSIONS = ("1.6.2", "1.7.7", "1.7.13", "1.8.1", "1.9.0", "1.10.1")
VERSIONS = (*OLD_VERSIONS, OWN_VERSION, *PYTHONS)
# These ask which jobs to stop, and older ones do not.
HEEDS_CANCEL = ("1.10.1", OWN_VERSION, *PYTHONS)
HANDLER = """\
import asyncio, decimal, os, tempfile, time
import runpod
from runpod.serverless.utils import rp_upload

runs = 0

def upload(job, sizes):
    paths = []
    for number, size in enumerate(sizes):
        path = os.path.join(tempfile.gettempdir(), f"{number}.png")
        with open(path, "wb") as file:
            file.write(bytes([65 + number]) * size)
        paths.append(path)
    urls = rp_upload.files(job["id"], paths)
    for path in paths:
        name = os.path.basename(path)
        urls.append(rp_upload.upload_file_to_bucket(name, path, prefix=job["id"]))
        with open(path, "rb") as file:
            urls.append(rp_upload.upload_in_memory_object(name, file.read(), prefix="memory"))
        os.remove(path)
    return urls

async def handler(job):
    global runs
    runs += 1
    match job["input"]:
        case {"exit": code}:
            os._exit(code)
        case {"touch": path, "await": other}:
            open(path, "w").close()
            try:
                while not os.path.exists(other):
                    await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                open(path + ".cancelled", "w").close()
                raise
        case {"touch": path, "block until": other}:
            open(path, "w").close()
            while not os.path.exists(other):
                time.sleep(0.02)
        case {"upload": sizes}:
            urls = upload(job, sizes)
            return {"version": runpod.__version__, "urls": urls}
        case {"decimal": value}:
            return {"value": decimal.Decimal(value)}
    return {"version": runpod.__version__, "process": os.getpid(), "runs": runs}

runpod.serverless.start({"handler": handler})
"""

pytestmark = pytest.mark.timeout(120)


class SDKServer(HandlerServer):
    """The server of a handler that runs with one version of the SDK."""

    def __init__(self, folder: Path, version: str, **settings: str) -> None:
        self.version = version
        # Where workers keep the files that older SDKs write.
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        options = ("--python", str(PYTHONS[version])) if version in PYTHONS else ()
        packages = [str(TESTS / ".sdks" / version)] if version in OLD_VERSIONS else []
        super().__init__(
            folder,
            HANDLER,
            *options,
            PYTHONPATH=os.pathsep.join((*packages, PYTHON_PATH)),
            TMPDIR=str(self.temporary),
            # One crash is enough, and workers end as soon as their last poll does.
            MAX_LOSSES="1",
            POLL_HOLD_S="0.5",
            **settings,
        )

    def answer(self, job_id: str) -> dict[str, Any]:
        """Wait for a job that completes; return its output."""
        job = self.finished(job_id)
        assert job["status"] == "COMPLETED", job
        output: dict[str, Any] = job["output"]
        assert output["version"] == self.version
        return output

    def assert_folder_is_clean(self) -> None:
        """Fail if a worker has left a file in the handler's folder."""
        assert os.listdir(self.project) == ["handler.py"]

    def close(self) -> None:
        super().close()
        self.assert_folder_is_clean()
        assert list(self.temporary.glob("worker-rkllm-*")) == []


ONE_WORKER = [pytest.param((version, {}), id=version) for version in VERSIONS]
# The second worker starts for a job that waits.
UP_TO_TWO = {"WORKERS": "2", "WORKERS_MIN": "1", "QUEUE_DELAY_S": "0"}
TWO_WORKERS = [pytest.param((version, UP_TO_TWO), id=version) for version in VERSIONS]


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SDKServer]:
    """A server with a version and settings; only one at a time, because workers without a job cost.

    SDK 1.7 to 1.9 use a whole core while they wait.
    """
    version, settings = request.param
    server = SDKServer(tmp_path_factory.mktemp("handler"), version, **settings)
    yield server
    server.close()


@pytest.mark.long_except("1.9.0")
@pytest.mark.parametrize("server", ONE_WORKER, indirect=True)
def test_job_after_a_crash_completes(server: SDKServer) -> None:
    crashed = server.run(exit=3)
    assert crashed["status"] == "FAILED"
    assert "its worker exited with code 3" in crashed["error"]
    assert server.answer(server.send())["runs"] == 1
    server.assert_folder_is_clean()


@pytest.mark.long
@pytest.mark.parametrize("server", ONE_WORKER, indirect=True)
def test_worker_is_free_after_a_cancelled_job(server: SDKServer, tmp_path: Path) -> None:
    running, until = tmp_path / "running", tmp_path / "until"
    job_id = server.send(touch=str(running), **{"await": str(until)})
    wait_until_blocking(running.exists, WAIT_S)
    cancelled = server.client.post(f"/v2/{ENDPOINT}/cancel/{job_id}").json()
    assert cancelled["status"] == "CANCELLED"
    if server.version in HEEDS_CANCEL:
        wait_until_blocking((tmp_path / "running.cancelled").exists, WAIT_S)
    else:
        # The handler continues to its own end.
        until.touch()
    # It is the same worker.
    assert server.answer(server.send())["runs"] > 1
    assert server.call("status", job_id)["status"] == "CANCELLED"
    server.assert_folder_is_clean()


@pytest.mark.long
@pytest.mark.parametrize("server", ONE_WORKER, indirect=True)
def test_result_that_cannot_be_sent_fails_its_job_once(server: SDKServer) -> None:  # R81
    before = server.answer(server.send())["runs"]
    failed = server.run(decimal=1)
    assert failed["status"] == "FAILED"
    reason = "Object of type Decimal is not JSON serializable"
    assert failed["error"] == f"the job's result could not be sent: {reason}"
    assert server.answer(server.send())["runs"] == before + 2
    server.assert_folder_is_clean()


@pytest.mark.long
@pytest.mark.parametrize("server", ONE_WORKER, indirect=True)
def test_url_of_each_upload_opens(server: SDKServer) -> None:
    # The SDK uploads the second size in one part and the third in two.
    sizes = (4_000, 60_000, 6_000_000)
    urls = server.answer(server.send(upload=sizes))["urls"]
    contents = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    expected = contents + [content for content in contents for _ in range(2)]
    for url, content in zip(urls, expected, strict=True):
        response = server.client.get(url)
        assert response.status_code == 200
        assert response.content == content
    assert server.client.get(urls[0]).headers["content-type"] == "image/png"
    server.assert_folder_is_clean()


@pytest.mark.long
@pytest.mark.parametrize("server", ONE_WORKER, indirect=True)
def test_job_of_a_worker_that_is_replaced_completes(server: SDKServer, tmp_path: Path) -> None:
    running, until = tmp_path / "running", tmp_path / "until"
    job_id = server.send(touch=str(running), **{"block until": str(until)})
    wait_until_blocking(running.exists, WAIT_S)
    server.edit(HANDLER + "# changed\n")
    new_worker = server.answer(server.send())
    until.touch()
    assert server.answer(job_id)["process"] != new_worker["process"]
    server.assert_folder_is_clean()


@pytest.mark.long
@pytest.mark.parametrize("server", TWO_WORKERS, indirect=True)
def test_second_worker_of_a_folder_takes_a_job_beside_the_first(
    server: SDKServer, tmp_path: Path
) -> None:
    # The handler blocks, because a worker that waits for a coroutine costs as much.
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    waiting = server.send(touch=first, **{"block until": second})
    # Otherwise both might start before the first one has noted its job.
    wait_until_blocking(Path(first).exists, WAIT_S)
    beside = server.send(touch=second, **{"block until": first})
    processes = {server.answer(job_id)["process"] for job_id in (waiting, beside)}
    assert len(processes) == 2
    server.assert_folder_is_clean()

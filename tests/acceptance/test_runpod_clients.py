"""RunPod's own clients, unmodified, against `python -m emulator` (R51)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
import pytest
import pytest_asyncio
import runpod

from tests.acceptance.npm_client import run_npm_client
from tests.integration.emulator.processes import EmulatorProcess, run_emulator

T = TypeVar("T")
pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNTS = {"completed", "failed", "inProgress", "inQueue", "retried"}
PURGED = {"removed": 2, "status": "completed"}
SCRIPT = {
    "answers": [
        {"when": "hang", "pieces": ["one ", {"hang_s": 3600}]},
        {"when": "slow", "pieces": [{"text": "late", "delay_ms": 1300}]},
        {"when": "bad", "pieces": [{"error": "out of memory"}]},
        {
            "when": "steps",
            "pieces": [
                "one ",
                {"text": "two ", "delay_ms": 600},
                {"text": "three", "delay_ms": 600},
            ],
        },
        {"pieces": ["it", " works"]},
    ],
    "slots": 8,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    settings = {
        "ENGINE": "scripted",
        "MODEL_PATH": str(folder / "script.json"),
        "STREAM_MODE": "generator",
        "JOB_DB": str(folder / "jobs.sqlite3"),
    }
    async with run_emulator(settings, "--port", "0") as process:
        await process.wait_until_listening()
        yield process


@pytest.fixture
def base_url(server: EmulatorProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{server.port}/v2"
    # The SDK reads RUNPOD_ENDPOINT_BASE_URL only when it is imported.
    monkeypatch.setattr(runpod, "endpoint_url_base", url)
    return url


def prompt(text: str) -> dict[str, Any]:
    return {"prompt": text, "sampling_params": {"stream": True}}


def text_of(outputs: list[Any]) -> str:
    """Return the full text in a generator's last output."""
    text: str = outputs[-1]["choices"][0]["text"]
    return text


# -- runpod.Endpoint ------------------------------------------------------------------------------


@contextmanager
def endpoint(endpoint_id: str = "default") -> Iterator[Any]:
    client = runpod.Endpoint(endpoint_id, api_key="any")
    try:
        yield client
    finally:
        client.rp_client.rp_session.close()


async def with_endpoint(use: Callable[[Any], T], endpoint_id: str = "default") -> T:
    """Use the client in a thread, since it blocks."""

    def run() -> T:
        with endpoint(endpoint_id) as client:
            return use(client)

    return await asyncio.to_thread(run)


async def test_python_run_and_status(base_url: str) -> None:
    def use(client: Any) -> None:
        job = client.run(prompt("hello"))
        assert job.output(timeout=60) == job.output()
        assert job.status() == "COMPLETED"
        assert text_of(job.output()) == "it works"
        failed = client.run({"input": prompt("bad")})
        assert failed.output(timeout=60) is None
        assert failed.status() == "FAILED"

    await with_endpoint(use)


async def test_python_run_sync(base_url: str) -> None:
    assert text_of(await with_endpoint(lambda client: client.run_sync(prompt("slow")))) == "late"
    # This client returns None for a failed job.
    assert await with_endpoint(lambda client: client.run_sync(prompt("bad"))) is None


async def test_python_stream_has_every_chunk(base_url: str) -> None:
    def use(client: Any) -> None:
        job = client.run(prompt("steps"))
        chunks = list(job.stream())
        assert len(chunks) > 1
        assert text_of(chunks) == "one two three"
        assert job.output() == chunks

    await with_endpoint(use)


async def test_python_stream_while_the_job_runs_and_cancel(base_url: str) -> None:
    def use(client: Any) -> None:
        job = client.run(prompt("hang"))
        chunks = job.stream()
        assert "one " in json.dumps(next(chunks))
        # The response with the chunk was not final; the client reads no other before the cancel.
        assert job.job_status is None
        assert job.status() == "IN_PROGRESS"
        chunks.close()
        assert job.cancel() == {"id": job.job_id, "status": "CANCELLED"}
        assert job.status() == "CANCELLED"
        assert job.output() is None

    await with_endpoint(use)


async def test_python_health_and_purge_queue(base_url: str) -> None:
    def use(client: Any) -> None:
        jobs = [client.run(prompt("hello")) for _ in range(2)]
        assert client.health()["jobs"]["inQueue"] == 2
        assert client.purge_queue() == PURGED
        assert [job.status() for job in jobs] == ["CANCELLED"] * 2
        assert client.health()["jobs"].keys() == COUNTS

    await with_endpoint(use, "python")


# -- runpod.AsyncioEndpoint -----------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.long
async def test_asyncio_run_and_status(base_url: str, session: aiohttp.ClientSession) -> None:
    client: Any = runpod.AsyncioEndpoint("default", session, api_key="any")
    job = await client.run(prompt("hello"))
    assert text_of(await job.output(timeout=60)) == "it works"
    assert await job.status() == "COMPLETED"
    failed = await client.run(prompt("bad"))
    assert await failed.output(timeout=60) is None
    assert await failed.status() == "FAILED"


@pytest.mark.long
async def test_asyncio_stream_has_every_chunk(
    base_url: str, session: aiohttp.ClientSession
) -> None:
    job: Any = await runpod.AsyncioEndpoint("default", session, api_key="any").run(prompt("steps"))
    chunks = [chunk async for chunk in job.stream()]
    assert len(chunks) > 1
    assert text_of(chunks) == "one two three"
    assert await job.output(timeout=60) == chunks


async def test_asyncio_stream_while_the_job_runs_and_cancel(
    base_url: str, session: aiohttp.ClientSession
) -> None:
    job: Any = await runpod.AsyncioEndpoint("default", session, api_key="any").run(prompt("hang"))
    chunks = job.stream()
    assert "one " in json.dumps(await anext(chunks))
    assert job.job_status is None
    assert await job.status() == "IN_PROGRESS"
    await chunks.aclose()
    assert await job.cancel() == {"id": job.job_id, "status": "CANCELLED"}
    assert await job.status() == "CANCELLED"


@pytest.mark.long
async def test_asyncio_health_and_purge_queue(
    base_url: str, session: aiohttp.ClientSession
) -> None:
    client: Any = runpod.AsyncioEndpoint("asyncio", session, api_key="any")
    jobs = [await client.run(prompt("hello")) for _ in range(2)]
    assert (await client.health())["jobs"]["inQueue"] == 2
    assert await client.purge_queue() == PURGED
    assert [await job.status() for job in jobs] == ["CANCELLED"] * 2


# -- runpod-sdk for Node.js -----------------------------------------------------------------------


async def test_npm_run_and_status(base_url: str) -> None:
    accepted, ended, status = await run_npm_client(base_url, "run")
    assert accepted["accepted"] == {"id": ended["ended"]["id"], "status": "IN_QUEUE"}
    assert ended["ended"] == status["status"]
    assert status["status"]["succeeded"] is True
    assert text_of(status["status"]["output"]) == "it works"


@pytest.mark.long
async def test_npm_run_sync(base_url: str) -> None:
    ended, failed = await run_npm_client(base_url, "runSync")
    assert text_of(ended["ended"]["output"]) == "late"
    assert (ended["ended"]["status"], ended["ended"]["completed"]) == ("COMPLETED", True)
    assert (failed["failed"]["status"], failed["failed"]["succeeded"]) == ("FAILED", False)
    assert failed["failed"]["error"] == "out of memory"


async def test_npm_stream_has_every_chunk(base_url: str) -> None:
    *chunks, status = await run_npm_client(base_url, "stream")
    outputs = [event["chunk"]["output"] for event in chunks]
    assert len(outputs) > 1
    assert text_of(outputs) == "one two three"
    assert status["status"]["output"] == outputs


async def test_npm_stream_while_the_job_runs_and_cancel(base_url: str) -> None:
    chunk, running, cancelled, status = await run_npm_client(base_url, "cancel")
    assert "one " in json.dumps(chunk["chunk"])
    # From before the cancel: the chunk arrived while the job ran, and then the stream ended.
    assert running["status"]["status"] == "IN_PROGRESS"
    assert cancelled["cancelled"]["status"] == "CANCELLED"
    assert status["status"]["status"] == "CANCELLED"


@pytest.mark.long
async def test_npm_health_and_purge_queue(base_url: str) -> None:
    waiting, purged, served = await run_npm_client(base_url, "queue")
    assert waiting["health"]["jobs"]["inQueue"] == 2
    assert purged["purged"] == PURGED
    assert served["health"]["jobs"].keys() == COUNTS
    workers = served["health"]["workers"]
    assert workers.keys() >= {"idle", "initializing", "ready", "running", "throttled"}
    assert workers["idle"] + workers["running"] == 8


@pytest.mark.long
async def test_npm_unknown_job_is_an_error(base_url: str) -> None:
    (event,) = await run_npm_client(base_url, "unknown")
    assert event["message"] == "Request failed with status code 404"

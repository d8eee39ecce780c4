"""Attacks that crash, hang or starve the engine must not harm the queued jobs."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine import EngineState
from engine.hooks import HostLoaded, HostLost, RequestEnded, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, read, run, write
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.integration.emulator.serving import RawConnection, Server, join_text, parse_chunks
from tests.security.engine_kills import engine_pid, kill_while_jobs_wait
from tests.unit.emulator.events import DEADLINE_S
from tests.waiting import poll_until, wait_until

COMPLETIONS = "/v1/completions"
CRASH = {"when": "crash", "pieces": ["so ", {"signal": "SIGSEGV", "delay_ms": 20}]}
# Deaf from the first token: between tokens, the engine could still notice the abort.
DEAF = {"when": "deaf", "pieces": [{"hang_s": 3600, "deaf": True}]}
HANG = {"when": "hang", "pieces": ["so far", {"hang_s": 3600}]}
STEADY = {"when": "steady", "pieces": ["on "], "repeat": 40, "delay_ms": 25}
SHORT = {"when": "short", "pieces": ["a", {"text": "b", "delay_ms": 150}]}


def kill(server: Server) -> None:
    pid = engine_pid(server)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def submit(client: httpx2.AsyncClient, prompt: str) -> str:
    answer = await client.post("/run", json={"input": {"prompt": prompt}})
    assert answer.status_code == 200
    return str(answer.json()["id"])


async def job_of(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await client.get(f"/status/{job_id}")).json()
    return job


async def wait_for(client: httpx2.AsyncClient, job_id: str, *statuses: str) -> dict[str, Any]:
    """Wait until a job has one of the statuses."""

    async def job_with_status() -> dict[str, Any] | None:
        job = await job_of(client, job_id)
        return job if job["status"] in statuses else None

    return await poll_until(job_with_status, DEADLINE_S)


@pytest.fixture
def fast_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 0.01)


# -- waiting jobs ---------------------------------------------------------------------------------


async def test_kills_of_the_engine_fail_no_waiting_job(serve: Serve, script: ScriptFactory) -> None:
    """The short form of the test in tests/long/security: 2 kills, 20 jobs waiting."""
    server = await serve(script(SHORT, slots=4), engine_isolation="process")
    outcome = await kill_while_jobs_wait(
        server, "short", jobs=20, kills=2, interval_s=0.3, within_s=DEADLINE_S
    )
    assert outcome.kills == 2
    assert outcome.failed_too_early == []
    assert outcome.statuses["COMPLETED"] == 20 - len(outcome.failed)


async def test_request_that_crashed_the_engine_is_refused_the_second_time(
    serve: Serve, script: ScriptFactory, fast_restarts: None
) -> None:
    server = await serve(script(CRASH, {}, slots=1), engine_isolation="process")
    async with server.client() as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "crash"})
        assert answer.status_code == 500
        for _ in range(7):
            answer = await client.post(COMPLETIONS, json={"prompt": "crash"})
            message = answer.json()["error"]["message"]
            assert answer.status_code == 400
            assert "the same request has ended the engine before" in message
            assert "SIGSEGV" in message
        answer = await client.post(COMPLETIONS, json={"prompt": "all is well"})
        assert (answer.status_code, server.engine.state) == (200, EngineState.READY)
    assert len(server.events.of(HostLost)) == 1


async def test_requests_that_crash_the_engine_cannot_end_a_server_that_works(
    serve: Serve, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.MAX_BACKOFF_S", 0.01)
    ways = [CRASH | {"when": f"crash {number}"} for number in range(7)]
    server = await serve(script(*ways, {}, slots=1), engine_isolation="process")
    async with server.client() as client:
        # No request has been answered before, and each of these crashes is another request's.
        for number in range(7):
            answer = await client.post(COMPLETIONS, json={"prompt": f"crash {number}"})
            assert answer.status_code == 500
        answer = await client.post(COMPLETIONS, json={"prompt": "all is well"})
        assert (answer.status_code, server.engine.state) == (200, EngineState.READY)


async def test_jobs_wait_and_requests_get_503_while_the_engine_is_down(
    serve: Serve, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 3.0)
    monkeypatch.setattr("engine.availability.SHORT_RESTART_S", 0.2)
    server = await serve(script({}), engine_isolation="process")
    async with server.client() as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
        getattr(server.engine, "_host")._load_s = 0.0  # noqa: B009
        kill(server)
        await server.events.wait(HostLost)
        jobs = [await submit(client, str(number)) for number in range(20)]
        answer = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert answer.status_code == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 4
        assert "restarting in" in answer.json()["error"]["details"]["reason"]
        assert {(await job_of(client, each))["status"] for each in jobs} == {"IN_QUEUE"}
        for each in jobs:
            assert (await wait_for(client, each, "COMPLETED", "FAILED"))["status"] == "COMPLETED"


async def test_requests_wait_for_a_short_restart(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({}), engine_isolation="process")
    async with server.client() as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
        kill(server)
        await server.wait_until(lambda: server.engine.state is EngineState.RESTARTING)
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200


async def test_state_and_reason_are_in_health_and_in_the_log(
    serve: Serve, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(script(CRASH, {}), engine_isolation="process")
    async with server.client() as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "crash"})).status_code == 500
        health = (await client.get("/health")).json()
        assert (health["status"], health["engine"]["state"]) == ("restarting", "restarting")
        assert (
            "after 1 crash: the engine process was killed by SIGSEGV"
            in (health["engine"]["trouble"])
        )
        await server.events.wait(HostLoaded, 2)
        assert (await client.get("/health")).json()["engine"]["trouble"] is None
    assert (
        "the engine process was killed by SIGSEGV (crash 1 in a row); restarting in 0.1 s, at"
        in (caplog.text)
    )


# -- the job that crashes the engine --------------------------------------------------------------


async def test_job_that_crashes_the_engine_fails_at_the_third_and_is_named(
    serve: Serve, script: ScriptFactory, fast_restarts: None
) -> None:
    server = await serve(script(CRASH, STEADY, {}, slots=4), engine_isolation="process")
    async with server.client() as client:
        neighbours = [await submit(client, "steady") for _ in range(2)]
        poison = await submit(client, "crash")
        neighbours += [await submit(client, "steady") for _ in range(9)]
        failed = await wait_for(client, poison, "FAILED", "COMPLETED")
        assert failed["status"] == "FAILED"
        assert failed["error"].startswith("the job was started and lost 3 times; the last time: ")
        assert "SIGSEGV" in failed["error"]
        for each in neighbours:
            job = await wait_for(client, each, "COMPLETED", "FAILED")
            assert job["status"] == "COMPLETED", job
    assert len(server.events.of(HostLost)) == 3


def test_line_that_crashes_the_engine_fails_alone_in_its_batch(
    tmp_path: Path, script: ScriptFactory
) -> None:
    model = script(CRASH, STEADY, {}, slots=4)
    lines = [call("poison", "crash"), *(call(f"{number}", "steady") for number in range(7))]
    out = tmp_path / "out.jsonl"
    # The retries crash at the same tokens, which is the worst case for the other lines.
    result = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert result.returncode == 1, result.stderr
    assert [line["custom_id"] for line in read(out)] == [f"{number}" for number in range(7)]
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "poison"
    assert "was killed by SIGSEGV" in failed["response"]["body"]["error"]["message"]


async def test_suspect_job_is_not_kept_waiting_by_requests_that_overlap(
    serve: Serve, script: ScriptFactory, fast_restarts: None
) -> None:
    """Otherwise two clients could hold up the whole queue with one job that crashes."""
    long = {"when": "long", "pieces": ["on "], "repeat": 16, "delay_ms": 50}
    server = await serve(script(CRASH, long, {}, slots=4), engine_isolation="process")
    async with server.client() as client:
        poison = await submit(client, "crash")
        await server.events.wait(HostLost, 2)
        behind = await submit(client, "behind")

        async def chat(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            while True:
                await client.post(COMPLETIONS, json={"prompt": "long"})

        # At every moment at least one of them runs, and slots are free.
        clients = [asyncio.create_task(chat(0.2 * number)) for number in range(3)]
        failed = await wait_for(client, poison, "FAILED", "COMPLETED")
        assert failed["status"] == "FAILED"
        assert (await wait_for(client, behind, "COMPLETED", "FAILED"))["status"] == "COMPLETED"
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@pytest.mark.long
async def test_crashes_of_a_job_are_counted_across_a_restart_of_the_server(
    tmp_path: Path, script: ScriptFactory, hosts_of: Callable[[int], list[int]]
) -> None:
    settings = {
        "PORT": "0",
        "MODEL_PATH": str(script(HANG, slots=1)),
        "JOB_DB": str(tmp_path / "jobs.sqlite3"),
    }

    async def kill_engine(server: EmulatorProcess) -> None:
        (pid,) = hosts_of(server.pid)
        os.kill(pid, signal.SIGKILL)

    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            job_id = await submit(client, "hang")
            await wait_for(client, job_id, "IN_PROGRESS")
            await kill_engine(server)
            await wait_for(client, job_id, "IN_QUEUE")
            await wait_for(client, job_id, "IN_PROGRESS")
            # An acknowledged job is on disk, and all that was written before it.
            await submit(client, "later")
        server.process.kill()
        await server.wait_for_exit()
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            await wait_for(client, job_id, "IN_PROGRESS")
            # The kill of the server was no crash of the job's, so this is the second one.
            await kill_engine(server)
            await wait_for(client, job_id, "IN_QUEUE")
            await wait_for(client, job_id, "IN_PROGRESS")
            await kill_engine(server)
            failed = await wait_for(client, job_id, "FAILED")
    assert failed["error"].startswith("the job was started and lost 3 times; the last time: ")
    assert "SIGKILL" in failed["error"]


# -- clients that abort ---------------------------------------------------------------------------


async def abort_a_deaf_request(server: Server, count: int) -> None:
    """Send a request that does not stop, and leave as soon as it runs, the `count`-th to run."""
    with await RawConnection.connect(server.port) as wire:
        await wire.post(COMPLETIONS, {"prompt": "deaf", "stream": True})
        await server.events.wait(RequestStarted, count)


async def test_aborts_that_cost_the_process_count_neither_against_jobs_nor_the_engine(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(
        script(DEAF, HANG, {}, slots=2),
        engine_isolation="process",
        abort_grace_s=0.1,
        engine_drain_s=0.1,
    )
    async with server.client() as client:
        job_id = await submit(client, "hang")
        # More often than a job may be lost.
        for number in range(4):
            await server.events.wait(RequestStarted, 2 * number + 1)
            await abort_a_deaf_request(server, 2 * number + 2)
            await server.events.wait(HostLost, number + 1)
            assert server.engine._host._supervisor.losses.policy.crashes_in_a_row == 0  # type: ignore[attr-defined]
        await server.events.wait(RequestStarted, 9)
        assert (await job_of(client, job_id))["status"] == "IN_PROGRESS"
        await client.post(f"/cancel/{job_id}")


async def test_crash_right_after_a_clients_abort_counts_neither_against_jobs_nor_the_engine(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(DEAF, HANG, {}, slots=2), engine_isolation="process")
    async with server.client() as client:
        job_id = await submit(client, "hang")
        for number in range(4):
            await server.events.wait(RequestStarted, 2 * number + 1)
            await abort_a_deaf_request(server, 2 * number + 2)
            await server.wait_until(lambda: any(each.is_aborted for each in server.engine._streams))
            # The library dies of the abort.
            kill(server)
            await server.events.wait(HostLost, number + 1)
            assert server.engine._host._supervisor.losses.policy.crashes_in_a_row == 0  # type: ignore[attr-defined]
        await server.events.wait(RequestStarted, 9)
        assert (await job_of(client, job_id))["status"] == "IN_PROGRESS"
        await client.post(f"/cancel/{job_id}")


async def test_neighbours_of_a_deaf_request_finish_before_the_process_is_killed(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(
        script(DEAF, STEADY, {}, slots=4), engine_isolation="process", abort_grace_s=0.1
    )
    async with server.client() as client:
        body = {"prompt": "steady", "stream": True}
        stream = asyncio.create_task(client.post(COMPLETIONS, json=body))
        job_id = await submit(client, "steady")
        await server.events.wait(RequestStarted, 2)
        await abort_a_deaf_request(server, 3)
        await server.wait_until(lambda: server.engine.state is EngineState.RESTARTING)
        # The engine starts no new request meanwhile, though a slot is free.
        later = await submit(client, "later")
        assert join_text(parse_chunks((await stream).content)) == "on " * 40
        assert (await wait_for(client, job_id, "COMPLETED", "FAILED"))["status"] == "COMPLETED"
        await server.events.wait(HostLost)
        ends = [
            type(each)
            for each in server.events.recorded
            if isinstance(each, RequestEnded | HostLost)
        ]
        assert ends.index(HostLost) >= 2
        assert (await wait_for(client, later, "COMPLETED", "FAILED"))["status"] == "COMPLETED"


async def test_neighbours_that_do_not_finish_in_time_are_requeued_or_get_an_error(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(
        script(DEAF, HANG, {}, slots=4),
        engine_isolation="process",
        abort_grace_s=0.1,
        engine_drain_s=0.2,
    )
    async with server.client() as client:
        request = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "hang"}))
        job_id = await submit(client, "hang")
        await server.events.wait(RequestStarted, 2)
        await abort_a_deaf_request(server, 3)
        answer = await request
        assert answer.status_code == 500
        assert "running beside another one" in answer.json()["error"]["message"]
        # Again, on the new process.
        await server.events.wait(RequestStarted, 4)
        assert (await wait_for(client, job_id, "IN_PROGRESS"))["status"] == "IN_PROGRESS"
        await client.post(f"/cancel/{job_id}")


# -- a machine that has nothing to give -----------------------------------------------------------


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let this process open no file until the end of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_start_without_descriptors_is_repeated_and_jobs_wait(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({}), engine_isolation="process")
    async with server.client() as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
        with no_free_descriptor():
            kill(server)
            await wait_until(lambda: server.engine.restarts >= 3)
            job_id = await submit(client, "x")
            assert "Too many open files" in (server.engine.trouble or "")
        assert (await wait_for(client, job_id, "COMPLETED", "FAILED"))["status"] == "COMPLETED"


# -- the end of a server without an engine --------------------------------------------------------


@pytest.mark.long
async def test_server_without_an_engine_exits_1_and_its_jobs_complete_after_the_restart(
    tmp_path: Path, script: ScriptFactory, hosts_of: Callable[[int], list[int]]
) -> None:
    path = script({"when": "hang", "pieces": ["a", {"hang_s": 3600}]}, {}, slots=1)
    settings = {
        "PORT": "0",
        "MODEL_PATH": str(path),
        "JOB_DB": str(tmp_path / "jobs.sqlite3"),
        "ENGINE_DOWN_EXIT_S": "0.5",
    }
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            running = await submit(client, "hang")
            waiting = [await submit(client, str(number)) for number in range(20)]
            await wait_for(client, running, "IN_PROGRESS")
        path.write_text(json.dumps({"load_error": "no memory for the model"}))
        (pid,) = hosts_of(server.pid)
        os.kill(pid, signal.SIGKILL)
        assert await server.wait_for_exit() == 1
    assert "the server ends with exit code 1: the engine could not be started" in server.stderr
    assert "no memory for the model" in server.stderr
    path.write_text(json.dumps({"answers": [{}]}))
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            for each in (running, *waiting):
                job = await wait_for(client, each, "COMPLETED", "FAILED")
                assert job["status"] == "COMPLETED", job


@pytest.mark.long
async def test_server_whose_model_cannot_be_loaded_exits_1_and_fails_no_job(
    tmp_path: Path, script: ScriptFactory
) -> None:  # R69
    path = script({})
    settings = {
        "PORT": "0",
        "MODEL_PATH": str(path),
        "JOB_DB": str(tmp_path / "jobs.sqlite3"),
    }
    async with run_emulator({**settings, "LOCAL_WORKER": "off"}) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            jobs = [await submit(client, str(number)) for number in range(20)]
        server.process.kill()
        await server.wait_for_exit()
    path.write_text("{")
    async with run_emulator(settings) as server:
        assert await server.wait_for_exit() == 1
    assert "the server ends with exit code 1: MODEL_PATH: " in server.stderr
    path.write_text(json.dumps({"answers": [{}]}))
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            for each in jobs:
                job = await wait_for(client, each, "COMPLETED", "FAILED")
                assert job["status"] == "COMPLETED", job


async def test_server_for_sdk_workers_stays_without_an_engine(script: ScriptFactory) -> None:
    path = script({}, load_error="the file is broken")
    settings = {"PORT": "0", "MODEL_PATH": str(path), "LOCAL_WORKER": "off"}
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        await wait_until(lambda: "goes on without its engine, for its SDK workers" in server.stderr)
        async with server.client() as client:
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "unavailable")
            job_id = await submit(client, "x")
            taken = await client.get("/v2/default/job-take/w1")
            assert taken.json()["id"] == job_id


@pytest.mark.long
async def test_worker_whose_model_cannot_be_loaded_is_unhealthy_and_fails_no_job(
    script: ScriptFactory,
) -> None:  # R69
    path = script({}, load_error="the file is broken")
    settings = {
        "PORT": "0",
        "MODEL_PATH": str(path),
        "LOCAL_WORKER": "off",
        "WORKERS": "1",
        "WORKER_COMMAND": f"{sys.executable} -m handler",
        "QUEUE_DELAY_S": "0",
    }
    async with run_emulator(settings) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            jobs = [await submit(client, "x") for _ in range(30)]

            async def unhealthy_workers() -> list[dict[str, Any]]:
                health = (await client.get("/v2/default/health")).json()
                return list(health["unhealthyWorkers"]) if health["workers"]["unhealthy"] else []

            (worker,) = await poll_until(unhealthy_workers, DEADLINE_S)
            assert worker["id"].startswith("launched-")
            assert "the file is broken" in worker["reason"]
            assert {(await job_of(client, each))["status"] for each in jobs} == {"IN_QUEUE"}
    assert "the worker takes no job: the file is broken" in server.stderr

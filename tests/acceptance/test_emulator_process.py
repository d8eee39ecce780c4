"""`python -m emulator` from its start to its end, on the scripted engine."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.processes import run_emulator
from tests.integration.emulator.serving import RawConnection, join_text, parse_chunks
from tests.waiting import poll_until, wait_until

ROUTE = "/v1/completions"
SCRIPTED = {"ENGINE": "scripted"}
ANY_PORT = ("--port", "0")
Hosts = Callable[[int], list[int]]


async def test_any_free_port_and_an_answer(script: ScriptFactory) -> None:
    path = script({"pieces": ["it", " works"]})
    async with run_emulator({"MODEL_PATH": str(path)}, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            response = await client.post(ROUTE, json={"prompt": "x"})
            assert response.json()["choices"][0]["text"] == "it works"
            job = (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()
            assert job["output"]["choices"][0]["text"] == "it works"


@pytest.mark.long_except("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_an_idle_server_immediately(
    hosts_of: Hosts, number: signal.Signals
) -> None:
    async with run_emulator(SCRIPTED, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            await client.get("/health")
            assert len(hosts_of(server.pid)) == 1
            server.process.send_signal(number)
            assert await server.wait_for_exit() == 0
        assert hosts_of(server.pid) == []
        assert "Traceback" not in server.stderr


async def test_sigterm_lets_a_stream_end(script: ScriptFactory, hosts_of: Hosts) -> None:
    pieces = ["first ", *({"text": "more ", "delay_ms": 20} for _ in range(30)), "last"]
    async with run_emulator({"MODEL_PATH": str(script({"pieces": pieces}))}, *ANY_PORT) as server:
        await server.wait_until_listening()
        with await RawConnection.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "x", "stream": True})
            assert (await wire.read_head())[0] == 200
            body = await wire.read_chunk()
            server.process.send_signal(signal.SIGTERM)
            while part := await wire.read_chunk():
                body += part
        assert join_text(parse_chunks(body)) == "first " + "more " * 30 + "last"
        assert await server.wait_for_exit() == 0
        assert hosts_of(server.pid) == []


async def test_sigterm_ends_unfinished_requests_with_an_error(
    script: ScriptFactory, hosts_of: Hosts
) -> None:
    forever = {"when": "talk", "pieces": ["bla "], "repeat": -1, "delay_ms": 5}
    hang = {"pieces": ["a", {"hang_s": 3600}]}
    path = str(script(forever, hang, slots=8))
    async with run_emulator({"MODEL_PATH": path}, *ANY_PORT, grace_s=0.5) as server:
        await server.wait_until_listening()
        wires = [await RawConnection.connect(server.port) for _ in range(4)]
        talking, hanging, waiting, job = wires
        await talking.post(ROUTE, {"prompt": "talk", "stream": True})
        await hanging.post(ROUTE, {"prompt": "hang", "stream": True})
        await waiting.post(ROUTE, {"prompt": "hang"})
        await job.post("/runsync", {"input": {"prompt": "hang"}})
        for wire in (talking, hanging):
            assert (await wire.read_head())[0] == 200
            await wire.read_chunk()
        server.process.send_signal(signal.SIGTERM)
        # No client gets a partial answer with a finish reason.
        for wire in (talking, hanging):
            body = await wire.read_all()
            assert b'"error":' in body
            assert b"shutting down" in body
            assert b'finish_reason":"' not in body
        assert (await waiting.read_response())[0] == 503
        status, _, payload = await job.read_response()
        assert (status, json.loads(payload)["status"] in ("IN_PROGRESS", "IN_QUEUE")) == (200, True)
        assert await server.wait_for_exit() == 0
        assert hosts_of(server.pid) == []
        assert "Traceback" not in server.stderr
        for wire in wires:
            wire.close()


@pytest.mark.long
async def test_second_signal_ends_it_quickly(script: ScriptFactory, hosts_of: Hosts) -> None:
    path = str(script({"pieces": ["a", {"hang_s": 3600}]}))
    async with run_emulator({"MODEL_PATH": path}, *ANY_PORT, grace_s=600) as server:
        await server.wait_until_listening()
        with await RawConnection.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "x", "stream": True})
            await wire.read_head()
            await wire.read_chunk()
            server.process.send_signal(signal.SIGTERM)
            await wait_until(lambda: "shutting down" in server.stderr)
            async with server.client() as client:
                assert (await client.get("/health")).json()["status"] == "draining"
            server.process.send_signal(signal.SIGINT)
            assert b"shutting down" in await wire.read_all()
            assert await server.wait_for_exit() == 0
        assert hosts_of(server.pid) == []


async def test_interrupted_job_runs_after_the_next_start(
    script: ScriptFactory, tmp_path: Path
) -> None:
    database = ("--db", str(tmp_path / "jobs.sqlite3"))
    path = script({"pieces": ["a", {"hang_s": 3600}]})
    body = {"input": {"prompt": "x"}}
    async with run_emulator({"MODEL_PATH": str(path)}, *ANY_PORT, *database, grace_s=0.2) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            job_id = (await client.post("/run", json=body)).json()["id"]

            async def has_started() -> bool:
                return bool((await client.get(f"/status/{job_id}")).json()["status"] != "IN_QUEUE")

            await poll_until(has_started)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
    path.write_text(json.dumps({"answers": [{"pieces": ["all of it"]}]}))
    async with run_emulator({"MODEL_PATH": str(path)}, *ANY_PORT, *database) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            job = (await client.get(f"/status-sync/{job_id}")).json()
    assert job["output"]["choices"][0]["text"] == "all of it"


async def test_requests_are_logged_with_their_names_and_no_keys() -> None:
    async with run_emulator(SCRIPTED | {"API_KEYS": "secret-key"}, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            for key in ("secret-key", "not-the-secret-key"):
                headers = {"authorization": f"Bearer {key}", "x-request-id": f"for-{len(key)}"}
                await client.post(f"{ROUTE}?key={key}", json={"prompt": "x"}, headers=headers)
            await client.get("/health")
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
    lines = [json.loads(line) for line in server.lines]
    request_lines = [line for line in lines if line["logger"] == "emulator.middleware.request_id"]
    assert [(line["status"], line["request_id"]) for line in request_lines] == [
        (200, "for-10"),
        (401, "for-18"),
    ]
    assert all(line["path"] == ROUTE and line["duration_ms"] > 0 for line in request_lines)
    assert "secret-key" not in server.stderr


async def test_fault_injection_is_a_warning_at_the_start() -> None:
    async with run_emulator(SCRIPTED | {"FAULTS_PER_REQUEST": "on"}, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            await client.post("/faults", json={"fault": "status=429"})
            assert (await client.post(ROUTE, json={"prompt": "x"})).status_code == 429
            assert (await client.get("/health")).status_code == 200
        (line,) = [line for line in server.lines if "FAULTS_PER_REQUEST is on" in line]
        assert json.loads(line)["level"] == "warning"


async def test_kill_of_the_server_leaves_no_engine_behind(
    script: ScriptFactory, hosts_of: Hosts
) -> None:
    path = script({"pieces": ["a", {"hang_s": 3600, "deaf": True}]})
    async with run_emulator({"MODEL_PATH": str(path)}, *ANY_PORT) as server:
        await server.wait_until_listening()
        with await RawConnection.connect(server.port) as wire:
            await wire.post(ROUTE, {"prompt": "x", "stream": True})
            await wire.read_head()
            assert len(hosts_of(server.pid)) == 1
            server.process.kill()
            assert await server.wait_for_exit() == -signal.SIGKILL
        await wait_until(lambda: hosts_of(server.pid) == [])


@pytest.mark.long_except("PORT-http")
@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "http"), ("MAX_QUEUE", "-1"), ("ENGINE", "magic"), ("LOG_FORMAT", "xml")],
)
async def test_bad_setting_is_one_line_and_code_2(name: str, value: str) -> None:
    async with run_emulator(SCRIPTED | {name: value}) as server:
        assert await server.wait_for_exit() == 2
        (line,) = server.lines
        assert line.startswith(f"{name}: ")
        assert repr(value) in line


@pytest.mark.long_except("http")
@pytest.mark.parametrize("port", ["-1", "65536", "99999", "http"])
async def test_bad_port_argument_is_refused(port: str) -> None:
    async with run_emulator(SCRIPTED, "--port", port) as server:
        assert await server.wait_for_exit() == 2
        assert "--port" in server.lines[-1]
        assert "Traceback" not in server.stderr


async def test_other_servers_variables_change_nothing() -> None:
    async with run_emulator(SCRIPTED | {"WEB_CONCURRENCY": "4"}, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            assert (await client.get("/health")).status_code in (200, 503)


@pytest.mark.long
async def test_server_whose_model_cannot_be_loaded_exits_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("no script")
    async with run_emulator({"MODEL_PATH": str(tmp_path / "no.json")}, *ANY_PORT) as server:
        assert await server.wait_for_exit() == 1
    assert "the server ends with exit code 1: " in server.stderr
    assert "no.json" in server.stderr


async def test_server_runs_on_without_its_engine_if_it_is_configured_to(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("no script")
    settings = {"MODEL_PATH": str(tmp_path / "no.json"), "ENGINE_DEAD_EXIT": "off"}
    async with run_emulator(settings, *ANY_PORT) as server:
        await server.wait_until_listening()
        async with server.client() as client:
            job = (await client.post("/run", json={"input": {"prompt": "x"}})).json()
            await wait_until(lambda: "(ENGINE_DEAD_EXIT=off)" in server.stderr)
            response = await client.post(ROUTE, json={"prompt": "x"})
            assert response.status_code == 503
            assert (await client.get(f"/status/{job['id']}")).json()["status"] == "IN_QUEUE"


async def test_disconnects_leave_no_memory_files_or_threads(
    script: ScriptFactory, scale: int
) -> None:  # R31
    talk = {"when": "leave", "pieces": ["bla " * 50, {"text": "x", "delay_ms": 1}], "repeat": 500}
    path = script(talk, {"pieces": ["all", " is", " well"]}, slots=4, context_length=100_000)
    rng = random.Random(scale)
    async with run_emulator({"MODEL_PATH": str(path)}, *ANY_PORT) as server:
        await server.wait_until_listening()
        before = server.state

        async def leave() -> None:
            with await RawConnection.connect(server.port) as wire:
                await wire.post(ROUTE, {"prompt": "leave", "stream": rng.random() < 0.8})
                if rng.random() < 0.7:
                    await asyncio.sleep(rng.random() * 0.02)
                wire.close(reset=rng.random() < 0.3)

        async def leave_and_check(count: int) -> None:
            for _ in range(count // 5):
                await asyncio.gather(*(leave() for _ in range(5)))
            async with server.client() as client:
                health = (await client.get("/health")).json()["engine"]
                while health["running"]:
                    health = (await client.get("/health")).json()["engine"]
                assert health["waiting"] == 0
                for _ in range(4):
                    response = await client.post(ROUTE, json={"prompt": "x", "stream": True})
                    assert join_text(parse_chunks(response.content)) == "all is well"
            await wait_until(lambda: server.state == before)

        await leave_and_check(50)
        memory = server.resident_bytes
        await leave_and_check(50 * (4 if scale > 1 else 1))
        assert server.resident_bytes - memory < 8_000_000

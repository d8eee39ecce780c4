"""API keys, request ids, limits, injected faults and timeouts of the server, over HTTP."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import openai
import pytest

from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.serving import (
    RawConnection,
    Server,
    build_request_head,
    join_text,
    parse_chunks,
)
from tests.waiting import run_ready_tasks

KEY = {"authorization": "Bearer secret-key"}
TAKE, TAKE_BATCH = "/v2/default/job-take/w", "/v2/default/job-take-batch/w"


# -- keys (R52) -----------------------------------------------------------------------------------


async def test_every_route_but_the_open_ones_needs_a_key(serve: Serve) -> None:
    server = await serve(api_keys="secret-key, other", poll_hold_s=0.01, stream_hold_s=0)
    async with server.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/docs")).status_code == 200
        for path, methods in paths.items():
            if path == "/health":
                continue
            parameters = (
                "job_id",
                "worker",
                "model",
                "route",
                "file_id",
                "batch_id",
                "response_id",
            )
            url = path.format(endpoint="default", **dict.fromkeys(parameters, "x"))
            for method in methods:
                refused = await client.request(method, url)
                assert refused.status_code == 401, path
                assert read_reason(refused.json()).startswith("an API key is needed")
                for value in ("Bearer secret-key", "other"):
                    accepted = await client.request(method, url, headers={"authorization": value})
                    assert accepted.status_code != 401, path


async def test_openai_client_with_and_without_the_key(serve: Serve) -> None:
    server = await serve(api_keys="secret-key")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret-key") as client:
        completion = await client.completions.create(model="scripted", prompt="hello")
        assert completion.choices[0].text == "hello"
    wrong = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    async with wrong:
        with pytest.raises(openai.AuthenticationError, match="an API key is needed"):
            await wrong.completions.create(model="scripted", prompt="hello")


async def test_large_body_without_a_key_is_refused_unread(serve: Serve) -> None:
    server = await serve(api_keys="secret-key")
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", "/run", "content-length: 9000000\r\n"))
        assert (await wire.read_response())[0] == 401


async def test_no_key_reaches_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(api_keys="secret-key")
    with caplog.at_level("DEBUG"):
        async with server.client() as client:
            await client.get("/v1/models", headers=KEY)
            await client.get("/v1/models", headers={"authorization": "Bearer nearly-secret-key"})
    assert "GET /v1/models 401" in caplog.text
    assert "secret-key" not in caplog.text


# -- request ids (R55) ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/run", 405),
        ("POST", "/run", 400),
        ("GET", "/status/none", 404),
        ("GET", TAKE, 204),
        ("GET", "/health/", 307),
    ],
)
async def test_every_response_has_the_request_id(
    serve: Serve, method: str, path: str, status: int
) -> None:
    server = await serve(poll_hold_s=0.01, local_worker=False)
    async with server.client() as client:
        named = await client.request(method, path, headers={"x-request-id": "my-name"})
        assert (named.status_code, named.headers["x-request-id"]) == (status, "my-name")
        unnamed = await client.request(method, path)
        assert len(unnamed.headers["x-request-id"]) == 32
        if status >= 400:
            body = named.json()
            error = body if isinstance(body["error"], str) else body["error"]
            assert error["request_id"] == "my-name"


async def test_stream_has_its_request_id_in_one_header(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        body = {"prompt": "a b", "stream": True}
        response = await client.post("/v1/completions", json=body, headers={"x-request-id": "me"})
    assert response.headers.get_list("x-request-id") == ["me"]
    assert join_text(parse_chunks(response.content)) == "a b"


# -- fault rules ----------------------------------------------------------------------------------


async def serve_with_faults(serve: Serve, *rules: dict[str, object], **settings: Any) -> Server:
    """Start a server and add the rules."""
    server = await serve(faults_per_request=True, **settings)
    async with server.client() as client:
        for rule in rules:
            assert (await client.post("/faults", json=rule)).status_code == 200
    return server


async def test_runpods_rate_limits_are_off_by_default(serve: Serve) -> None:
    rule = {"fault": "rate-limits"}
    for rules in ((), (rule,)):
        server = await serve_with_faults(serve, *rules)
        async with server.client() as client:
            statuses = [(await client.post("/purge-queue")).status_code for _ in range(5)]
        assert statuses == ([200, 200, 429, 429, 429] if rules else [200] * 5)


async def post_result_until_accepted(server: Server, path: str) -> int:
    """Post a result until the server accepts it; return the number of dropped connections."""
    async with server.client() as client:
        for broken in range(100):
            try:
                response = await client.post(path, content=b'{"output": "done"}')
            except httpx2.RemoteProtocolError:
                continue
            assert response.json() == {"ok": True}
            return broken
    raise AssertionError("it was never taken")


async def test_dropped_post_is_accepted_when_it_is_repeated(serve: Serve) -> None:
    rule = {"fault": "close", "operation": "job-done", "probability": 0.7}
    server = await serve_with_faults(serve, rule, fault_seed=3, local_worker=False)
    broken = 0
    async with server.client() as client:
        for _ in range(10):
            job_id = (await client.post("/run", json={"input": 1})).json()["id"]
            assert (await client.get(TAKE)).json()["id"] == job_id
            broken += await post_result_until_accepted(server, f"/v2/default/job-done/w/{job_id}")
            assert (await client.get(f"/status/{job_id}")).json()["output"] == "done"
    assert broken > 5


async def test_lost_lease_goes_to_the_next_and_the_first_is_ignored(serve: Serve) -> None:
    operations = ("job-take", "job-take-batch")
    rules = [
        {"fault": "lose-lease", "operation": operation, "probability": 0.5}
        for operation in operations
    ]
    server = await serve_with_faults(serve, *rules, fault_seed=4, local_worker=False, max_losses=50)
    lost = 0
    async with server.client() as client:
        for path in (TAKE, TAKE_BATCH) * 5:
            job_id = (await client.post("/run", json={"input": 1})).json()["id"]
            for number in range(50):
                await client.get(path)
                done = await client.post(
                    f"/v2/default/job-done/w/{job_id}", json={"output": number}
                )
                if "ignored" not in done.json():
                    break
                lost += 1
            job = (await client.get(f"/status/{job_id}")).json()
            assert (job["status"], job["output"]) == ("COMPLETED", number)
    assert lost > 3


async def test_openai_client_retries_occasional_failures(serve: Serve) -> None:
    rules = [{"fault": f"status={status}", "probability": 0.2} for status in (429, 500)]
    server = await serve_with_faults(serve, *rules, fault_seed=5)
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=8
    ) as client:
        client._calculate_retry_timeout = lambda *_: 0.0  # type: ignore[method-assign]
        for _ in range(10):
            completion = await client.completions.create(model="scripted", prompt="hi")
            assert completion.choices[0].text == "hi"


# -- the disk -------------------------------------------------------------------------------------


async def test_locked_database_returns_503_and_degrades_health(
    serve: Serve, tmp_path: Path
) -> None:
    server = await serve(job_db=str(tmp_path / "jobs.sqlite3"), local_worker=False)
    await server.engine.ready()
    # A held lock stands for a broken disk: a test can create and remove it.
    lock = sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with closing(lock):
        async with server.client() as client:
            before = (await client.get("/health")).json()
            assert before["jobs"] == {"database": "ok", "trouble": None, "set_aside": []}
            response = await client.post("/run", json={"input": 1})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            reason = read_reason(response.json())
            assert "jobs.sqlite3" in reason
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (200, "degraded")
            assert health.json()["jobs"]["trouble"] == reason
            assert health.json()["jobs"]["database"] == "unavailable"
            # Requests that need no disk still work.
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
            lock.rollback()
            accepted = await client.post("/run", json={"input": 1})
            assert accepted.status_code == 200
            assert (await client.get("/health")).json()["status"] == "ok"


async def test_health_reports_a_locked_database_while_the_model_loads(
    serve: Serve, gate: Gate, tmp_path: Path
) -> None:
    server = await serve(gate.path, job_db=str(tmp_path / "jobs.sqlite3"))
    async with server.client() as client:
        before = (await client.get("/health")).json()
        lock = sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        with closing(lock):
            refused = await client.post("/run", json={"input": 1})
            health = await client.get("/health")
        # Let the model load before any assert: the server's shutdown waits for the load.
        await gate.open()
    assert (before["status"], refused.status_code) == ("loading", 503)
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert health.json()["engine"]["state"] == "loading"


async def test_health_reports_that_jobs_are_kept_in_memory(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        assert (await client.get("/health")).json()["jobs"]["database"] == "memory"


# -- the description ------------------------------------------------------------------------------


class DescriptionCheck:
    """Checks responses against their description in /openapi.json."""

    def __init__(self, description: dict[str, Any]) -> None:
        self._description = description
        self.responses: set[tuple[str, str, str]] = set()

    def check(self, path: str, response: httpx2.Response) -> None:
        method = response.request.method.lower()
        status = str(response.status_code)
        responses_of_route = self._description["paths"][path][method]["responses"]
        assert status in responses_of_route, (path, status)
        media_type = response.headers.get("content-type", "").partition(";")[0]
        content = responses_of_route[status].get("content", {})
        assert (media_type in content) if response.content else not content, (
            path,
            status,
            media_type,
        )
        if media_type == "application/json":
            schema = content[media_type]["schema"] | {"components": self._description["components"]}
            jsonschema_rs.validate(schema, response.json())
        self.responses.add((path, method, status))


async def test_responses_match_the_description(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(
        script({"pieces": ["a", "b"]}), poll_hold_s=0.01, stream_hold_s=0.01, max_run_mb=0.001
    )
    async with server.client() as client:
        description = DescriptionCheck((await client.get("/openapi.json")).json())

        async def ask(
            method: str, path: str, body: Any = None, **parameters: str
        ) -> httpx2.Response:
            content = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"}
            response = await client.request(
                method, path.format(endpoint="e", **parameters), content=content, headers=headers
            )
            description.check(path, response)
            return response

        await ask("GET", "/health")
        await ask("GET", "/v1/models")
        await ask("POST", "/v1/completions", {"prompt": "x"})
        await ask("POST", "/v1/completions", {"prompt": "x", "stream": True})
        await ask("POST", "/v1/completions", {"prompt": 1})
        await ask("POST", "/v1/completions", {"prompt": "x", "model": "none"})
        message = {"role": "user", "content": "x"}
        await ask("POST", "/v1/chat/completions", {"messages": [message]})
        response = (await ask("POST", "/v1/responses", {"input": "x"})).json()["id"]
        await ask("POST", "/v1/responses", {"input": "x", "stream": True})
        await ask("POST", "/v1/responses", {"input": 1})
        for place in ("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items"):
            await ask("GET", place, response_id=response)
            await ask("GET", place, response_id="none")
        await ask("POST", "/v1/responses/{response_id}/cancel", response_id=response)
        await ask("DELETE", "/v1/responses/{response_id}", response_id=response)
        await ask("POST", "/runsync", {"input": {"prompt": "x"}})
        job = (await ask("POST", "/run", {"input": {"prompt": "x"}})).json()["id"]
        await ask("GET", "/status-sync/{job_id}", job_id=job)
        for path in ("/status", "/stream", "/requests"):
            await ask("GET", f"{path}/{{job_id}}", job_id=job)
            await ask("GET", f"{path}/{{job_id}}", job_id="none")
        await ask("POST", "/cancel/{job_id}", job_id=job)
        await ask("POST", "/retry/{job_id}", job_id=job)
        await ask("GET", "/requests")
        await ask("POST", "/run", {"input": "x" * 2000})
        await ask("POST", "/run", {})
        base = "/v2/{endpoint}"
        await ask("GET", f"{base}/job-take/{{worker}}", worker="w")
        await ask("GET", f"{base}/job-stop/{{worker}}", worker="w")
        await ask("GET", f"{base}/ping/{{worker}}", worker="w")
        for batch in ("", "-batch"):
            await ask("POST", f"{base}/run", {"input": 1, "policy": {"ttl": 10_000}})
            leased = (await ask("GET", f"{base}/job-take{batch}/{{worker}}", worker="w")).json()
            parameters = {"worker": "w", "job_id": (leased[0] if batch else leased)["id"]}
            posts = (
                f"{base}/job-stream/{{worker}}/{{job_id}}",
                f"{base}/job-done/{{worker}}/{{job_id}}",
            )
            await ask("POST", posts[0], {"output": "half"}, **parameters)
            await ask("GET", f"{base}/stream/{{job_id}}", job_id=parameters["job_id"])
            await ask("POST", posts[1], {"output": 1, "status": "IN_PROGRESS"}, **parameters)
            await ask("POST", posts[1], {"error": "no"}, **parameters)
            await ask("POST", posts[1], {"output": "late"}, **parameters)
            await ask("POST", f"{base}/retry/{{job_id}}", job_id=parameters["job_id"])
            await ask("GET", f"{base}/status/{{job_id}}", job_id=parameters["job_id"])
        await ask("POST", f"{base}/purge-queue")
        await ask("GET", f"{base}/health")
    assert len(description.responses) > 30


# -- timeouts of connections ----------------------------------------------------------------------


async def read_until_closed(wire: RawConnection, within_s: float) -> bytes:
    async with asyncio.timeout(within_s):
        try:
            return await wire.read_all()
        except ConnectionResetError:
            return b""


async def test_incomplete_head_times_out(serve: Serve) -> None:
    server = await serve(head_timeout_s=0.3)
    for start in (b"", b"G", b"\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: "):
        with await RawConnection.connect(server.port) as wire:
            await wire.send(start)
            assert await read_until_closed(wire, 3) == b""


async def test_slow_head_gets_no_extra_time(serve: Serve) -> None:
    server = await serve(head_timeout_s=0.3)
    with await RawConnection.connect(server.port) as wire:

        async def send_slowly() -> None:
            await wire.send(b"GET /health HTTP/1.1\r\n")
            while True:
                await wire.send(b"x: y\r\n")
                await asyncio.sleep(0.01)

        task = asyncio.create_task(send_slowly())
        assert await read_until_closed(wire, 3) == b""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_next_head_on_a_connection_has_its_own_timeout(serve: Serve) -> None:
    server = await serve(head_timeout_s=0.3)
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("GET", "/health"))
        assert (await wire.read_response())[0] == 200
        # An idle connection does not time out: no head has started.
        await asyncio.sleep(0.5)
        await wire.send(build_request_head("GET", "/health") + b"G")
        assert (await wire.read_response())[0] == 200
        await wire.send(b"E")
        assert await read_until_closed(wire, 3) == b""


async def test_late_next_head_does_not_cut_the_answer_before_it(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(
        script({"pieces": ["a", {"text": "b", "delay_ms": 700}]}), head_timeout_s=0.2
    )
    body = b'{"prompt": "x"}'
    with await RawConnection.connect(server.port) as wire:
        length = f"content-length: {len(body)}\r\n"
        await wire.send(build_request_head("POST", "/v1/completions", length) + body + b"GET /hea")
        status, _, response_body = await wire.read_response()
        assert (status, b'"text":"ab"' in response_body) == (200, True)
        assert await read_until_closed(wire, 3) == b""


async def test_head_without_end_is_refused_by_its_size(serve: Serve) -> None:
    server = await serve(head_timeout_s=3600)
    with await RawConnection.connect(server.port) as wire:
        await wire.send(b"GET /health HTTP/1.1\r\n")
        try:
            for _ in range(200):
                await wire.send(b"x-filler: " + b"x" * 10_000 + b"\r\n")
                await run_ready_tasks(1)
        except (ConnectionResetError, BrokenPipeError):
            pass
        await server.wait_until(lambda: not server.connections)


async def test_large_head_that_is_still_sane_is_taken(serve: Serve) -> None:
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("GET", "/health", "x-filler: " + "x" * 30_000 + "\r\n"))
        assert (await wire.read_response())[0] == 200


async def test_incomplete_body_times_out(serve: Serve) -> None:
    server = await serve(body_timeout_s=0.3, head_timeout_s=60)
    for path in ("/run", "/v1/completions", "/v2/default/job-done/w/j"):
        with await RawConnection.connect(server.port) as wire:
            await wire.send(
                build_request_head("POST", path, "content-length: 100\r\n") + b'{"input": '
            )
            await read_until_closed(wire, 3)
    await server.wait_until_no_requests()


async def test_slow_body_is_accepted_within_its_timeout(serve: Serve) -> None:
    server = await serve(body_timeout_s=2, head_timeout_s=0.1)
    body = b'{"input": 1}'
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", "/run", f"content-length: {len(body)}\r\n"))
        for index in range(len(body)):
            await asyncio.sleep(0.02)
            await wire.send(body[index : index + 1])
        assert (await wire.read_response())[0] == 200


async def test_client_that_never_reads_is_cut_off(serve: Serve, script: ScriptFactory) -> None:
    flood = {"pieces": ["bla " * 1000], "repeat": 20_000}
    server = await serve(script(flood, context_length=10**9), read_timeout_s=0.5)
    wire = await RawConnection.connect(server.port, receive_buffer=4096)
    # If the flood overruns the event loop, only a short error is sent, which always fits.
    body = {"prompt": "x", "stream": True}
    await wire.post("/v1/completions", body, "connection: close\r\n")
    await server.wait_until(lambda: bool(server.tasks))
    await server.wait_until(lambda: not server.connections)
    await server.wait_until_idle()
    wire.close()

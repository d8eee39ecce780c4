"""`/v2/{endpoint}/openai/v1/*` over HTTP: local and remote workers, and disconnects."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx2
import pytest

from engine.hooks import RequestEnded, RequestStarted
from handler.models.model_list import ModelEntry
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.job_client import get_job_counts
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.integration.emulator.serving import (
    RawConnection,
    Server,
    join_text,
    parse_chunks,
    parse_sse,
)
from tests.waiting import poll_until

LOCAL, OTHER = "/v2/default/openai/v1", "/v2/other/openai/v1"
MODES = ("aggregate", "generator")
TURNS = [{"role": "user", "content": "say it"}]
HANG = {"hang_s": 3600}
# Fields whose values differ from answer to answer.
VARYING = {"id", "created", "request_id"}
CHAT_CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "grün"}, "finish_reason": None}],
}


def without_varying_fields(value: Any) -> Any:
    """Return an answer without the fields that differ from answer to answer."""
    if isinstance(value, dict):
        return {
            key: without_varying_fields(each) for key, each in value.items() if key not in VARYING
        }
    return [without_varying_fields(each) for each in value] if isinstance(value, list) else value


async def wait_until_settled(server: Server) -> None:
    """Wait until the server is idle and all jobs have ended."""
    await server.wait_until_idle()
    async with server.client() as client:

        async def have_all_ended() -> bool:
            counts = await get_job_counts(client, "/v2/default")
            return not counts["inProgress"] and not counts["inQueue"]

        await poll_until(have_all_ended)


# -- the worker in the server ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/completions", {"prompt": "say it"}),
        ("/completions", {"prompt": "say it", "stop": [" 😀"], "max_tokens": 3, "echo": True}),
        ("/completions", {"prompt": ["say it", "again"], "n": 2}),
        ("/chat/completions", {"messages": TURNS}),
        ("/chat/completions", {"messages": TURNS, "logprobs": True, "top_logprobs": 1}),
        ("/embeddings", {"input": ["say it", "again"]}),
    ],
)
async def test_answer_is_that_of_the_direct_route(
    serve: Serve, script: ScriptFactory, mode: str, route: str, body: dict[str, Any]
) -> None:
    server = await serve(script({"pieces": ["Good", " day", " you", " 😀"]}), stream_mode=mode)
    async with server.client() as client:
        direct = await client.post(f"/v1{route}", json=body)
        queued = await client.post(LOCAL + route, json=body)
        assert direct.status_code == queued.status_code == 200
        assert queued.headers["content-type"] == "application/json"
        assert without_varying_fields(queued.json()) == without_varying_fields(direct.json())
        if "input" in body or isinstance(body.get("prompt"), list):
            return
        streamed = await client.post(LOCAL + route, json=body | {"stream": True})
        # R19
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["cache-control"] == "no-cache"
        assert streamed.headers["x-accel-buffering"] == "no"
        chunks = parse_chunks(streamed.content)
        # R24
        choice = queued.json()["choices"][0]
        assert join_text(chunks) == (choice["text"] if "text" in choice else TEXT)
        assert chunks[-1]["usage"] == queued.json()["usage"]


TEXT = "Good day you 😀"


async def test_several_prompts_are_not_streamed(serve: Serve, script: ScriptFactory) -> None:  # R28
    server = await serve(script({"pieces": ["Good", " day"]}))
    body = {"prompt": ["one", "two"], "stream": True}
    async with server.client() as client:
        for prefix in ("/v1", LOCAL):
            response = await client.post(f"{prefix}/completions", json=body)
            assert response.status_code == 400


@pytest.mark.parametrize("mode", MODES)
async def test_stream_arrives_while_the_job_runs(
    serve: Serve, script: ScriptFactory, mode: str
) -> None:  # R29
    server = await serve(script({"pieces": ["early", HANG, "late"]}), stream_mode=mode)
    async with server.client() as client:
        with await RawConnection.connect(server.port) as wire:
            await wire.post(f"{LOCAL}/completions", {"prompt": "x", "stream": True})
            status, headers = await wire.read_head()
            assert status == 200
            assert headers["x-request-id"]
            (chunk,) = parse_sse(await wire.read_chunk())
            assert chunk["choices"][0]["text"] == "early"
            assert (await get_job_counts(client, "/v2/default"))["inProgress"] == 1
            assert server.events.of(RequestEnded) == []
        # R31: the disconnect aborts the generation.
        (ended,) = await server.events.wait(RequestEnded)
        assert ended.aborted
    await wait_until_settled(server)


async def test_other_jobs_of_an_aggregating_worker_do_not_stream(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"pieces": ["a", "b"]}))
    call = {"openai_route": "/v1/completions", "openai_input": {"prompt": "x", "stream": True}}
    async with server.client() as client:
        await client.post(f"{LOCAL}/completions", json=call["openai_input"])
        job = (await client.post("/runsync", json={"input": call})).json()
    assert isinstance(job["output"], str)
    assert join_text(parse_chunks(job["output"].encode())) == "ab"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": "x", "temperature": 3}, 400, "temperature"),
        ({"prompt": "x", "model": "gpt-4"}, 404, "model"),
        ({"prompt": "bad"}, 500, None),
    ],
)
async def test_error_is_that_of_the_direct_route(
    serve: Serve,
    script: ScriptFactory,
    body: dict[str, Any],
    status: int,
    param: str | None,
    stream: bool,
) -> None:  # R30, R53
    fault = {"when": "bad", "pieces": [{"error": "out of memory"}]}
    server = await serve(script(fault, {"pieces": ["a"]}))
    async with server.client() as client:
        direct = await client.post("/v1/completions", json=body | {"stream": stream})
        queued = await client.post(f"{LOCAL}/completions", json=body | {"stream": stream})
    assert direct.status_code == queued.status_code == status
    assert queued.headers["content-type"] == "application/json"
    assert without_varying_fields(queued.json()) == without_varying_fields(direct.json())
    assert queued.json()["error"]["param"] == param
    assert queued.json()["error"]["request_id"] == queued.headers["x-request-id"]


async def test_error_in_mid_stream_is_an_event_and_the_end(
    serve: Serve, script: ScriptFactory
) -> None:  # R30
    fault = {"pieces": ["so far", {"error": "out of memory", "delay_ms": 100}]}
    server = await serve(script(fault))
    async with server.client() as client:
        response = await client.post(f"{LOCAL}/completions", json={"prompt": "x", "stream": True})
    assert response.status_code == 200
    first, error, done = parse_sse(response.content)
    assert first["choices"][0]["text"] == "so far"
    assert (error["error"]["code"], done) == (500, "[DONE]")
    assert "out of memory" in error["error"]["message"]


async def test_engine_that_did_not_start_is_unavailable(
    serve: Serve, script: ScriptFactory
) -> None:  # R54
    # A server without any model exits (R69); one that has another model stays.
    broken = ModelEntry(path=script(load_error="no such model"), name="broken")
    server = await serve(
        models=(broken, ModelEntry(path=script(), name="good")), engine_isolation="process"
    )
    async with server.client() as client:
        for stream in (False, True):
            body = {"prompt": "x", "stream": stream}
            direct = await client.post("/v1/completions", json=body)
            queued = await client.post(f"{LOCAL}/completions", json=body)
            assert direct.status_code == queued.status_code == 503
            assert without_varying_fields(queued.json()) == without_varying_fields(direct.json())
            assert queued.headers["retry-after"] == direct.headers["retry-after"]


@pytest.mark.parametrize("stream", [False, True])
async def test_execution_timeout_is_504(serve: Serve, script: ScriptFactory, stream: bool) -> None:
    server = await serve(
        script({"pieces": [HANG]}), execution_timeout_ms=200, min_execution_timeout_ms=1
    )
    async with server.client() as client:
        response = await client.post(f"{LOCAL}/completions", json={"prompt": "x", "stream": stream})
    assert response.status_code == 504
    assert response.json()["error"]["message"] == "the call took the worker longer than 0.2 s"
    await wait_until_settled(server)


async def test_models_of_the_local_worker_are_known_while_it_loads(
    serve: Serve, gate: Gate
) -> None:
    server = await serve(gate.path, model_name="org/little")
    async with server.client() as client:
        direct, queued = [(await client.get(f"{base}/models")).json() for base in ("/v1", LOCAL)]
        assert queued == direct
        one = await client.get(f"{LOCAL}/models/org/little")
        assert one.json() == direct["data"][0]
        other = await client.get(f"{LOCAL}/models/gpt-4")
        assert other.status_code == 404
        assert "org/little" in other.json()["error"]["message"]
    await gate.open()


async def test_models_by_job_are_the_same(serve: Serve) -> None:
    server = await serve(model_name="little")
    async with server.client() as client:
        job = {"input": {"openai_route": "/v1/models", "openai_input": {}}}
        by_job = (await client.post("/runsync", json=job)).json()["output"]
        by_route = (await client.get(f"{LOCAL}/models")).json()
    assert without_varying_fields(by_job) == without_varying_fields(by_route)


async def test_unknown_route_is_404(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        response = await client.post(f"{LOCAL}/audio/speech", json={"input": "x"})
    assert response.status_code == 404
    assert "/v1/audio/speech" in response.json()["error"]["message"]


# -- refused requests -----------------------------------------------------------------------------


async def test_body_is_checked_as_on_the_direct_route(serve: Serve) -> None:  # R53
    server = await serve(max_body_mb=0.001)
    async with server.client() as client:
        path = f"{LOCAL}/completions"
        headers = {"content-type": "application/json"}
        responses = [
            await client.post(path, content=b"{", headers=headers),
            await client.post(
                path, content=b"{}", headers={"content-type": "text/plain", "origin": server.url}
            ),
            await client.post(path, json={"prompt": "x" * 2000}),
            await client.post(path, json=[1]),
            await client.post(f"{path}?wait=5", json={"prompt": "x"}),
            await client.post(path, content=b'{"a":' * 300 + b"1" + b"}" * 300, headers=headers),
        ]
    assert [response.status_code for response in responses] == [400, 415, 413, 400, 400, 413]
    assert responses[4].json()["error"]["param"] == "wait"


async def test_routes_need_a_key_when_keys_are_set(serve: Serve) -> None:  # R52
    server = await serve(api_keys="secret")
    async with server.client() as client:
        for method, path in (("POST", "completions"), ("GET", "models"), ("GET", "models/x")):
            url = f"{LOCAL}/{path}"
            assert (await client.request(method, url, json={"prompt": "x"})).status_code == 401
            with_key = {"authorization": "Bearer secret"}
            response = await client.request(method, url, json={"prompt": "x"}, headers=with_key)
            assert response.status_code == (404 if path == "models/x" else 200)


async def test_full_queue_returns_429(serve: Serve) -> None:  # R54
    server = await serve(max_jobs=1)
    async with server.client() as client, asyncio.TaskGroup() as group:
        waiting = group.create_task(client.post(f"{OTHER}/completions", json={"prompt": "x"}))

        async def queued() -> bool:
            return bool((await get_job_counts(client))["inQueue"])

        await poll_until(queued)
        for stream in (False, True):
            response = await client.post(
                f"{LOCAL}/completions", json={"prompt": "x", "stream": stream}
            )
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            assert response.json()["error"]["type"] == "rate_limit_error"
        job = await ScriptedWorker(client).take_job()
        await ScriptedWorker(client).post_result(job, output={"a": 1})
        assert (await waiting).json() == {"a": 1}


# -- a worker that has joined ---------------------------------------------------------------------


async def test_worker_that_joins_answers(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, asyncio.TaskGroup() as group:
        worker = ScriptedWorker(client)
        body = {"messages": TURNS, "unknown": {"to": "us"}}
        completion = group.create_task(client.post(f"{OTHER}/chat/completions", json=body))
        job = await worker.take_job()
        assert job["input"] == {"openai_route": "/v1/chat/completions", "openai_input": body}
        assert job.keys() == {"id", "input"}
        await worker.post_result(job, output=[{"object": "chat.completion", "choices": []}])
        assert (await completion).json() == {"object": "chat.completion", "choices": []}


@pytest.mark.long_except("7")
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_each_chunk_on_the_wire_holds_complete_events(serve: Serve, size: int) -> None:  # R29
    server = await serve()
    event = f"data: {json.dumps(CHAT_CHUNK, ensure_ascii=False)}\r\n\r\n"
    text = event * 3 + "data: [DONE]\r\n\r\n"
    async with server.client() as client:
        worker = ScriptedWorker(client)
        with await RawConnection.connect(server.port) as wire:
            await wire.post(f"{OTHER}/chat/completions", {"messages": TURNS, "stream": True})
            job = await worker.take_job()

            async def send_pieces() -> None:
                for start in range(0, len(text), size):
                    await worker.send_chunks(job, text[start : start + size])
                await worker.post_result(job, output=[])

            sending = asyncio.create_task(send_pieces())
            status, _ = await wire.read_head()
            assert status == 200
            events: list[Any] = []
            while block := await wire.read_chunk():
                # Each chunk can be parsed without the others.
                events += parse_sse(block)
            await sending
    assert events == [CHAT_CHUNK] * 3 + ["[DONE]"]


async def test_disconnect_stops_the_worker(serve: Serve) -> None:  # R31
    server = await serve()
    async with server.client() as client:
        # One worker per case: a job that has just been dispatched is stopped twice.
        for name, body in (("w1", {"prompt": "x"}), ("w2", {"prompt": "x", "stream": True})):
            worker = ScriptedWorker(client, name=name)
            with await RawConnection.connect(server.port) as wire:
                await wire.post(f"{OTHER}/completions", body)
                job = await worker.take_job()
                if "stream" in body:
                    await worker.send_chunks(job, "data: 1\n\n")
                    await wire.read_until(b"data: 1\n\n")
            stops = await client.get(f"/v2/other/job-stop/{name}")
            assert stops.json() == {"jobsToStop": [job["id"]]}
            status = await client.get(f"/v2/other/status/{job['id']}")
            assert status.json()["status"] == "CANCELLED"


async def test_job_of_a_call_can_be_inspected_and_cancelled(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client, asyncio.TaskGroup() as group:
        completion = group.create_task(client.post(f"{OTHER}/completions", json={"prompt": "x"}))
        job = await ScriptedWorker(client).take_job()
        job_status = (await client.get(f"/v2/other/status/{job['id']}")).json()
        assert (job_status["status"], job_status["workerId"]) == ("IN_PROGRESS", "w1")
        cancelled = await client.post(f"/v2/other/cancel/{job['id']}")
        assert cancelled.json()["status"] == "CANCELLED"
        response = await completion
        assert response.status_code == 499
        assert response.json()["error"]["type"] == "cancelled_error"


# -- clients that leave, or stop reading ----------------------------------------------------------


async def test_disconnect_of_a_client_that_reads_nothing_aborts_its_job(
    serve: Serve, script: ScriptFactory
) -> None:
    flood = {"when": "leave", "pieces": ["x" * 20_000], "repeat": -1, "delay_ms": 1}
    server = await serve(script(flood, {}, slots=1, context_length=10**9))
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(f"{LOCAL}/completions", {"prompt": "leave", "stream": True})
        await wire.read_head()
        (connection,) = server.connections
        await server.wait_until(lambda: connection.flow.write_paused)
    (ended,) = await server.events.wait(RequestEnded)
    assert ended.aborted
    await wait_until_settled(server)


async def test_client_that_never_reads_loses_only_its_own_answer(
    serve: Serve, script: ScriptFactory
) -> None:
    flood = {"when": "leave", "pieces": ["x" * 20_000], "repeat": -1, "delay_ms": 1}
    server = await serve(script(flood, {}, slots=1, context_length=10**9), read_timeout_s=0.5)
    with await RawConnection.connect(server.port, receive_buffer=4096) as wire:
        await wire.post(f"{LOCAL}/completions", {"prompt": "leave", "stream": True})
        await server.events.wait(RequestEnded)
        async with server.client() as client:
            response = await client.post(f"{LOCAL}/completions", json={"prompt": "all is well"})
            assert response.json()["choices"][0]["text"] == "all is well"
    await wait_until_settled(server)


async def test_random_disconnects_leave_no_requests_or_jobs(
    serve: Serve, script: ScriptFactory, scale: int
) -> None:  # R31
    talk = {"when": "leave", "prefill_ms": 3, "pieces": ["bla "], "repeat": 200, "delay_ms": 1}
    server = await serve(script(talk, {}, slots=3))
    rng = random.Random(scale)

    async def disconnect() -> None:
        with await RawConnection.connect(server.port) as wire:
            body = {"prompt": "leave", "stream": rng.random() < 0.7}
            await wire.post(f"{LOCAL}/completions", body)
            await asyncio.sleep(rng.random() * 0.1)
            wire.close(reset=rng.random() < 0.5)

    async def complete(number: int) -> None:
        async with server.client() as client:
            body = {"prompt": f"all is well {number}", "stream": True}
            response = await client.post(f"{LOCAL}/completions", json=body)
        assert join_text(parse_chunks(response.content)) == f"all is well {number}"

    for _ in range(10 * scale):
        await asyncio.gather(*[disconnect() for _ in range(4)], complete(rng.randrange(1000)))
    await wait_until_settled(server)
    assert server.events.of(RequestStarted)


async def test_concurrent_clients_get_their_own_answers(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script({"delay_ms": 1}, slots=4))
    async with server.client(limits=httpx2.Limits(max_connections=100)) as client:

        async def ask(number: int) -> None:
            prompt = f"number {number} of a hundred"
            body = {"prompt": prompt, "stream": number % 2 == 0}
            response = await client.post(f"{LOCAL}/completions", json=body)
            if body["stream"]:
                assert join_text(parse_chunks(response.content)) == prompt
            else:
                assert response.json()["choices"][0]["text"] == prompt

        await asyncio.gather(*[ask(number) for number in range(100)])
    await wait_until_settled(server)

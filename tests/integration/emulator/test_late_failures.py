"""Streams that fail late, or end with the server, on the direct and the queue's routes."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.integration.emulator.serving import RawConnection

USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 99},
    "/api/chat": {"messages": USER, "model": "tiny"},
    "/api/generate": {"prompt": "hi", "model": "tiny"},
}
QUEUE = "/v2/default/openai"
ROUTES = [*BODIES, *(QUEUE + route for route in BODIES if "/v1/" in route)]
HANG = {"hang_s": 3600}


def read_events(body: str) -> list[dict[str, Any]]:
    """Return the data of all events or lines of a stream, and check the names of the events."""
    events = []
    for block in body.replace("\r", "").split("\n"):
        if block.startswith("event: "):
            name = block.removeprefix("event: ")
        elif block.startswith(("data: {", "{")):
            events.append(json.loads(block.removeprefix("data: ")))
            if "type" in events[-1]:
                assert events[-1]["type"] == name
    return events


def read_kinds(body: str) -> list[str]:
    """Return the types of the events, one for neighbours of the same type: their number varies."""
    return [kind for kind, _ in groupby(event["type"] for event in read_events(body))]


def check_failure(route: str, body: str, sentence: str, request_id: str) -> None:
    """Check that a stream ends with an error in the form of its API, with the request's id."""
    events = read_events(body)
    if route.endswith("/v1/responses") and len(events) == 1:
        # The queue knows of no response before a worker has begun one.
        assert route.startswith(QUEUE)
        assert events[0]["type"] == "error"
        assert events[0]["request_id"] == request_id
        assert sentence in events[0]["message"]
    elif route.endswith("/v1/responses"):
        error, failed = events[-2:]
        assert events[0]["type"] == "response.created"
        assert (error["type"], failed["type"]) == ("error", "response.failed")
        assert error["request_id"] == request_id
        assert failed["response"]["id"] == events[0]["response"]["id"]
        assert (failed["response"]["status"], failed["response"]["output"]) == ("failed", [])
        assert sentence in failed["response"]["error"]["message"]
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))
    elif route.endswith("/v1/messages"):
        assert events[-1]["type"] == "error"
        # Beside the error, as in Anthropic's bodies.
        assert events[-1]["request_id"] == request_id
        assert sentence in events[-1]["error"]["message"]
        assert "[DONE]" not in body
    elif route.startswith("/api/"):
        assert sentence in events[-1]["error"]
        assert list(events[-1]) == ["error", "request_id"]
        assert events[-1]["request_id"] == request_id
    else:
        assert sentence in str(events[-1]["error"])
        assert events[-1]["error"]["request_id"] == request_id
        assert body.rstrip().endswith("data: [DONE]")


def body_of(route: str) -> dict[str, Any]:
    return BODIES[route.removeprefix(QUEUE)] | {"stream": True}


@pytest.mark.parametrize("route", ROUTES)
async def test_error_after_the_first_text_has_the_form_of_its_api(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    pieces = ["some", {"error": "it broke", "delay_ms": 50}]
    server = await serve(script({"pieces": pieces}), model_name="tiny")
    async with server.client() as client:
        answer = await client.post(route, json=body_of(route))
    assert answer.status_code == 200
    check_failure(route, answer.text, "it broke", answer.headers["x-request-id"])


@pytest.mark.parametrize("route", ROUTES)
async def test_end_of_the_server_ends_the_stream_in_the_form_of_its_api(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    server = await serve(script({"pieces": ["some", HANG]}), model_name="tiny")
    with await RawConnection.connect(server.port) as wire:
        await wire.post(route, body_of(route))
        _, headers = await wire.read_head()
        body = b""
        while b"some" not in body:
            body += await wire.read_chunk()
        async with asyncio.timeout(40):
            await server.graceful_shutdown.wait()
        for task in server.tasks:
            task.cancel()
        while chunk := await wire.read_chunk():
            body += chunk
    check_failure(route, body.decode(), "shut", headers["x-request-id"])


@pytest.mark.parametrize("route", [route for route in ROUTES if "/v1/" in route])
async def test_error_after_comments_has_the_form_of_its_api(
    serve: Serve, gate: Gate, route: str
) -> None:
    server = await serve(gate.path, model_name="tiny", stream_comments_after_s=0.01)
    with await RawConnection.connect(server.port) as wire:
        await wire.post(route, body_of(route))
        _, headers = await wire.read_head()
        body = await wire.read_chunk()
        assert body.startswith(b": still here")
        await gate.open(answers=[{"pieces": [{"error": "it broke"}]}])
        while chunk := await wire.read_chunk():
            body += chunk
    # R85
    check_failure(route, body.decode(), "it broke", headers["x-request-id"])


@pytest.mark.parametrize("endpoint", ["default", "other"])
@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
async def test_queue_passes_on_the_events_of_an_api(
    serve: Serve, script: ScriptFactory, endpoint: str, route: str
) -> None:
    server = await serve(script({"pieces": ["Good", " day"]}), model_name="tiny")
    async with server.client(timeout=40) as client:
        direct = await client.post(route, json=body_of(route))
        waiting = asyncio.create_task(
            client.post(f"/v2/{endpoint}/openai{route}", json=body_of(route))
        )
        if endpoint == "other":
            # A worker of another kind: one event for each output, or a part of the text of several.
            worker, half = ScriptedWorker(client, endpoint), len(direct.text) // 2
            job = await worker.take_job()
            await worker.send_chunks(job, direct.text[:half], direct.text[half:])
            await worker.post_result(job, output=[])
        queued = await waiting
    assert read_kinds(queued.text) == read_kinds(direct.text)
    assert ("[DONE]" in queued.text) == ("[DONE]" in direct.text)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_messages_have_their_form_in_the_queue(
    serve: Serve, script: ScriptFactory, stream: bool
) -> None:
    server = await serve(script({"pieces": ["Good"]}), model_name="tiny")
    wrong = {"messages": [], "max_tokens": 9, "stream": stream}
    async with server.client() as client:
        direct = await client.post("/v1/messages", json=wrong)
        queued = await client.post("/v2/default/openai/v1/messages", json=wrong)
        job_input = {"openai_route": "/v1/messages", "openai_input": wrong}
        job = (await client.post("/runsync", json={"input": job_input})).json()
    assert direct.status_code == queued.status_code == 400
    assert queued.json()["error"] == direct.json()["error"]
    assert queued.json()["type"] == "error"
    assert json.loads(job["error"])["error"] == direct.json()["error"]

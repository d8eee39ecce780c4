"""Long answers that are read again: the work is linear, and the event loop runs in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import orjson
import pytest

from emulator.apis.openai.queued_call import QueuedCall
from emulator.apis.responses.background import BackgroundResponses
from emulator.console.events import JobEventStream
from emulator.console.generation_tracker import GenerationTracker
from emulator.http.shutdown_state import ShutdownState
from emulator.http.stream_steps import STEP_BYTES
from emulator.runpod.stream_route import JobStream
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.wire_format import FORMATS
from handler.apis.responses.events import EventEncoder
from jobs import Job, MemoryJobStore, NewJob, Policy
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.loop_stalls import watched_loop
from tests.security.raw_http import exchange
from tests.waiting import poll_until

STALL_LIMIT_S = 0.35
TOKENS = 20_000
Reader = Callable[[MemoryJobStore, Job], AsyncIterator[bytes]]


def response_events(count: int) -> list[str]:
    """Return the events of a response with so many tokens, as its worker streams them."""
    encoder = EventEncoder(first=2)
    place = {"item_id": "msg_0", "output_index": 0, "content_index": 0, "logprobs": []}
    delta = "response.output_text.delta"
    events = [encoder.encode(delta, place | {"delta": " token"}) for _ in range(count)]
    events.append(encoder.encode("response.completed", {"response": {}}))
    return [event.decode() for event in events]


def chat_event_in_pieces(count: int) -> list[str]:
    """Return one event that a worker streams in so many pieces."""
    return ["data: ", *["x" * 100] * count, "\n\n", "data: [DONE]\n\n"]


def read_response(store: MemoryJobStore, job: Job, after: int = -1) -> AsyncIterator[bytes]:
    service = cast("Any", None)
    return BackgroundResponses(store, service, "default", Policy()).stream(job, after)


def read_end_of_response(store: MemoryJobStore, job: Job) -> AsyncIterator[bytes]:
    return read_response(store, job, TOKENS)


def read_job(store: MemoryJobStore, job: Job) -> AsyncIterator[bytes]:
    return JobStream(store, hold_s=0, comments_after_s=None)._events(job.id, (0, 0))


def read_in_console(store: MemoryJobStore, job: Job) -> AsyncIterator[bytes]:
    return JobEventStream(store, GenerationTracker(), job.id).events()


async def read_call(store: MemoryJobStore, job: Job) -> AsyncIterator[bytes]:
    shutdown, wire_format = ShutdownState(), FORMATS[OPENAI]
    call = QueuedCall(store, job, shutdown, 60, lambda *_: None, wire_format, streaming=True)
    await call.open()
    async for events in call.stream():
        assert isinstance(events, bytes)
        yield events


READERS: dict[str, tuple[Reader, Callable[[int], list[str]]]] = {
    "response": (read_response, response_events),
    "end of a response": (read_end_of_response, response_events),
    "job": (read_job, response_events),
    "console": (read_in_console, response_events),
    "OpenAI call of a job": (read_call, chat_event_in_pieces),
}


@pytest.mark.parametrize("name", READERS)
async def test_long_answer_that_is_read_late_does_not_stall_the_event_loop(name: str) -> None:
    read, values_of = READERS[name]
    store = MemoryJobStore()
    await store.start()
    work = {"openai_route": "/v1/responses", "openai_input": {"background": True}, "envelope": {}}
    job = await store.enqueue(NewJob(endpoint="default", input=orjson.dumps(work)))
    (leased,) = await store.receive("default", "default/w", lease_s=3600)
    chunks = [orjson.dumps(value) for value in values_of(TOKENS)]
    await store.append_chunks(job.id, leased.attempt, chunks)
    await store.ack(job.id, leased.attempt, output=b'{"status": "completed"}')
    async with watched_loop() as stalls:
        await asyncio.sleep(0)
        sizes = [len(block) async for block in read(store, job)]
        # The watcher measures a stall when the loop runs again.
        await asyncio.sleep(0.01)
        assert stalls.longest_s < STALL_LIMIT_S
    await store.close()
    if read is not read_end_of_response:
        assert sum(sizes) > TOKENS * 100
    if read is not read_call:
        # Each event of a job is a little longer than its chunk.
        assert max(sizes) < 2 * STEP_BYTES


async def test_background_response_is_read_again_without_a_stall(
    serve: Serve, script: ScriptFactory, scale: int
) -> None:
    tokens = 1_000 if scale == 1 else 40_000
    model = script({"pieces": [" token"] * tokens}, context_length=2 * tokens)
    server = await serve(model, model_name="little")
    body = orjson.dumps({"input": "x", "background": True, "max_output_tokens": tokens})
    created = await exchange(server.port, "POST", "/v1/responses", body=body)
    assert created.status == 200, created.body
    path = f"/v1/responses/{orjson.loads(created.body)['id']}"

    async def has_ended() -> bool:
        response = await exchange(server.port, "GET", path)
        return orjson.loads(response.body)["status"] not in ("queued", "in_progress")

    async with watched_loop() as stalls:
        await poll_until(has_ended)
        assert stalls.reset() < STALL_LIMIT_S
        for query in ("?stream=true", f"?stream=true&starting_after={tokens}", "", "/input_items"):
            response = await exchange(server.port, "GET", path + query, deadline_s=60)
            assert response.status == 200, query
            assert stalls.reset() < STALL_LIMIT_S, query
            if query == "?stream=true":
                assert response.body.count(b"event: response.output_text.delta") == tokens

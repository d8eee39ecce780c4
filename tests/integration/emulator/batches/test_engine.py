"""Batches on the engine: priority, share of the slots, and engine crashes."""

from __future__ import annotations

import asyncio
import os
import signal

from engine import Priority
from engine.hooks import RequestQueued, RequestStarted
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.batches.support import ENDPOINT, HANG, Clients, calls, counts
from tests.integration.emulator.conftest import Serve
from tests.integration.engine.support import child_pid


async def test_interactive_requests_start_before_queued_lines(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script({"delay_ms": 30}, slots=2)))
    server = client.server
    batch = await client.create(calls(30))
    await server.events.wait(RequestStarted, 4)
    async with server.client() as http:
        requests = [http.post(ENDPOINT, json={"prompt": f"now {each}"}) for each in range(4)]
        responses = await asyncio.gather(*requests)
    assert [response.status_code for response in responses] == [200] * 4
    events = [
        (type(each), each.priority)
        for each in server.events.recorded
        if isinstance(each, RequestQueued | RequestStarted)
    ]
    interactive = [
        index for index, each in enumerate(events) if each == (RequestStarted, Priority.INTERACTIVE)
    ]
    queued = events.index((RequestQueued, Priority.INTERACTIVE))
    between = events[queued : interactive[-1]]
    # No line was started while an interactive request was queued.
    assert (RequestStarted, Priority.BATCH) not in between
    assert counts(await client.ended(batch)) == (30, 30, 0)
    assert {each.priority for each in server.events.of(RequestStarted)} == {
        Priority.INTERACTIVE,
        Priority.BATCH,
    }


async def test_all_answers_of_one_line_have_batch_priority(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    line = call("one", "x", n=3)
    assert counts(await client.ended(await client.create([line]))) == (1, 1, 0)
    started = client.server.events.of(RequestStarted)
    assert [each.priority for each in started] == [Priority.BATCH] * 3


async def test_batch_share_leaves_slots_free(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4), batch_share=0.5))
    server = client.server
    batch = await client.create(calls(8, "hang"))
    await server.events.wait(RequestStarted, 2)
    async with server.client() as http:
        for _ in range(5):
            assert (await http.post(ENDPOINT, json={"prompt": "now"})).status_code == 200
    assert server.engine.running == 2
    priorities = [each.priority for each in server.events.of(RequestStarted)]
    assert priorities.count(Priority.BATCH) == 2
    await client.openai.batches.cancel(batch.id)
    await client.ended(batch)


async def test_lines_are_retried_after_the_engine_process_was_killed(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    path = script({"delay_ms": 40}, slots=2)
    client = clients(await serve(path, engine_isolation="process"))
    batch = await client.create(calls(20))
    await client.server.events.wait(RequestStarted, 3)
    os.kill(child_pid(client.server.engine), signal.SIGKILL)
    ended = await client.ended(batch)
    assert (ended.status, counts(ended)) == ("completed", (20, 20, 0))
    assert client.server.engine.restarts == 1


async def test_batches_wait_for_a_failed_engine_and_can_be_cancelled(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(load_error="no memory")))
    batch = await client.create(calls(2))
    queued_batch = await client.create(calls(2))
    for each in (batch, queued_batch):
        await client.wait_until(each, lambda batch: batch.status == "in_progress")
    await client.server.wait_until(lambda: client.server.engine.failure is not None)
    for each in (queued_batch, batch):
        await client.openai.batches.cancel(each.id)
        ended = await client.ended(each)
        assert (ended.status, counts(ended)) == ("cancelled", (2, 0, 0))

"""Batches and the one engine: who goes first, how much they may have, and its deaths."""

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


async def test_interactive_requests_go_before_lines_that_wait(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script({"delay_ms": 30}, slots=2)))
    server = client.server
    made = await client.create(calls(30))
    await server.events.wait(RequestStarted, 4)
    async with server.client() as http:
        asked = [http.post(ENDPOINT, json={"prompt": f"now {each}"}) for each in range(4)]
        answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * 4
    told = [
        (type(each), each.priority)
        for each in server.events.seen
        if isinstance(each, RequestQueued | RequestStarted)
    ]
    interactive = [
        place for place, each in enumerate(told) if each == (RequestStarted, Priority.INTERACTIVE)
    ]
    queued = told.index((RequestQueued, Priority.INTERACTIVE))
    between = told[queued : interactive[-1]]
    # Not one line was begun while somebody waited for an answer.
    assert (RequestStarted, Priority.BATCH) not in between
    assert counts(await client.ended(made)) == (30, 30, 0)
    assert {each.priority for each in server.events.of(RequestStarted)} == {
        Priority.INTERACTIVE,
        Priority.BATCH,
    }


async def test_several_answers_to_a_line_are_asked_for_as_a_batch(
    serve: Serve, clients: Clients
) -> None:
    client = clients(await serve())
    line = call("one", "x", n=3)
    assert counts(await client.ended(await client.create([line]))) == (1, 1, 0)
    started = client.server.events.of(RequestStarted)
    assert [each.priority for each in started] == [Priority.BATCH] * 3


async def test_the_share_leaves_slots_free(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4), batch_share=0.5))
    server = client.server
    made = await client.create(calls(8, "hang"))
    await server.events.wait(RequestStarted, 2)
    async with server.client() as http:
        for _ in range(5):
            assert (await http.post(ENDPOINT, json={"prompt": "now"})).status_code == 200
    assert server.engine.running == 2
    priorities = [each.priority for each in server.events.of(RequestStarted)]
    assert priorities.count(Priority.BATCH) == 2
    await client.openai.batches.cancel(made.id)
    await client.ended(made)


async def test_a_dead_engine_process_costs_its_lines_a_retry(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    path = script({"delay_ms": 40}, slots=2)
    client = clients(await serve(path, engine_isolation="process"))
    made = await client.create(calls(20))
    await client.server.events.wait(RequestStarted, 3)
    os.kill(child_pid(client.server.engine), signal.SIGKILL)
    done = await client.ended(made)
    assert (done.status, counts(done)) == ("completed", (20, 20, 0))
    assert client.server.engine.restarts == 1


async def test_with_a_dead_engine_batches_wait_and_can_be_cancelled(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(load_error="no memory")))
    made = await client.create(calls(2))
    waits = await client.create(calls(2))
    for each in (made, waits):
        await client.until(each, lambda batch: batch.status == "in_progress")
    await client.server.wait_until(lambda: client.server.engine.failure is not None)
    for each in (waits, made):
        await client.openai.batches.cancel(each.id)
        done = await client.ended(each)
        assert (done.status, counts(done)) == ("cancelled", (2, 0, 0))

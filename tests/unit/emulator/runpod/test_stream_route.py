"""`/stream` as JSON: each chunk is delivered once, and the last response has all that remain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from emulator.http.disconnect import ClientDisconnected
from handler.errors import NotFound
from jobs import Job
from tests.unit.emulator.streamed import StreamedJob
from tests.waiting import run_ready_tasks

Connect = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("no_tasks_left")


async def test_each_chunk_is_in_one_response(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a", {"b": 1})
    assert await at.answered(connection()) == ("IN_PROGRESS", ["a", {"b": 1}])
    await at.append_chunks("c")
    assert await at.answered(connection()) == ("IN_PROGRESS", ["c"])
    await at.append_chunks("d")
    await at.end()
    assert await at.answered(connection()) == ("COMPLETED", ["d"])
    assert await at.answered(connection()) == ("COMPLETED", [])


async def test_end_without_chunks_has_a_message(connection: Connect) -> None:  # R59
    at = StreamedJob()
    await at.begin("e/local")
    await at.end()
    response = await at.ask(connection())
    assert (response["status"], response["stream"]) == ("COMPLETED", [])
    assert response["message"].startswith("the job did not ask to stream")


async def test_only_an_end_without_chunks_has_a_message(connection: Connect) -> None:
    at = StreamedJob(hold_s=0.02)
    await at.begin()
    assert "message" not in await at.ask(connection())
    await at.append_chunks("a", "b")
    await at.end()
    assert "message" not in await at.ask(connection())
    drained = await at.ask(connection())
    assert drained["message"].startswith("all 2 chunks of this job were returned by earlier")


async def test_response_waits_for_a_chunk(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a")
    await at.answered(connection())
    for _ in range(2):
        request_task = at.ask(connection())
        await run_ready_tasks()
        assert not request_task.done()
        await at.append_chunks("b")
        assert (await request_task)["stream"] == [{"output": "b"}]
    request_task = at.ask(connection())
    await run_ready_tasks()
    await at.end()
    response = await request_task
    assert (response["status"], response["stream"]) == ("COMPLETED", [])


async def test_response_waits_no_longer_than_hold_s(connection: Connect) -> None:
    at = StreamedJob(hold_s=0.02)
    await at.begin()
    assert await at.answered(connection()) == ("IN_PROGRESS", [])
    await at.append_chunks("a")
    await at.answered(connection())
    assert await at.answered(connection()) == ("IN_PROGRESS", [])


async def test_client_that_disconnects_while_waiting_drains_nothing(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    leaver = connection()
    request_task = at.ask(leaver)
    await run_ready_tasks()
    leaver.left.set()
    with pytest.raises(ClientDisconnected):
        await request_task
    await at.append_chunks("a")
    assert await at.answered(connection()) == ("IN_PROGRESS", ["a"])


@pytest.mark.parametrize("first", ["leaves", "speaks"])
@pytest.mark.parametrize("between", range(8))
async def test_chunk_is_drained_or_kept_when_the_client_disconnects_at_any_turn(
    connection: Connect, first: str, between: int
) -> None:
    at = StreamedJob()
    await at.begin()
    leaver = connection()
    request_task = at.ask(leaver)
    await run_ready_tasks()
    if first == "leaves":
        leaver.left.set()
        await run_ready_tasks(between)
        await at.append_chunks("a")
    else:
        await at.append_chunks("a")
        await run_ready_tasks(between)
        leaver.left.set()
    try:
        received = (await request_task)["stream"]
    except ClientDisconnected:
        received = []
    if first == "leaves" or between == 0:
        assert received == []
    remaining = (
        [{"output": value} for value in (await at.answered(connection()))[1]]
        if not received
        else []
    )
    assert received + remaining == [{"output": "a"}]


async def test_client_that_disconnected_before_the_response_drains_nothing(
    connection: Connect,
) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a")
    leaver = connection()
    leaver.left.set()
    with pytest.raises(ClientDisconnected):
        await at.ask(leaver)
    assert await at.answered(connection()) == ("IN_PROGRESS", ["a"])


async def test_head_drains_nothing(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a")
    request = connection().request()
    request.scope["method"] = "HEAD"
    await at.stream.respond(request, at.job)
    assert await at.answered(connection()) == ("IN_PROGRESS", ["a"])


@pytest.mark.parametrize("between", range(12))
async def test_last_response_has_all_remaining_chunks(connection: Connect, between: int) -> None:
    # As the npm client reads: it stops at the first final status.
    at = StreamedJob()
    await at.begin()

    async def read() -> list[Any]:
        outputs: list[Any] = []
        status = ""
        while status != "COMPLETED":
            status, values = await at.answered(connection())
            outputs += values
        return outputs

    reader = asyncio.create_task(read())
    await run_ready_tasks()
    await at.append_chunks("a")
    await run_ready_tasks(between)
    await at.append_chunks("b")
    await at.end()
    assert await reader == ["a", "b"]


async def test_two_readers_share_the_chunks(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    request_tasks = [at.ask(connection()) for _ in range(2)]
    await run_ready_tasks()
    await at.append_chunks("a", "b")
    outputs = [item["output"] for each in request_tasks for item in (await each)["stream"]]
    assert outputs == ["a", "b"]


async def test_chunks_of_a_new_attempt_come_after_the_chunks_of_the_lost_one(
    connection: Connect,
) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a", "b")
    assert await at.answered(connection()) == ("IN_PROGRESS", ["a", "b"])
    await at.lose()
    request_task = at.ask(connection())
    await run_ready_tasks()
    await at.begin()
    await at.append_chunks("a")
    assert await request_task == {"status": "IN_PROGRESS", "stream": [{"output": "a"}]}


async def test_removed_job_is_not_found(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    at.job = Job(id="gone", endpoint="e", input=b"", created_at=0)
    with pytest.raises(NotFound, match="there is no job gone"):
        await at.ask(connection())

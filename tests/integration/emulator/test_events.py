"""`/stream` over HTTP as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.job_client import submit_job
from tests.integration.emulator.scripted_worker import ScriptedWorker
from tests.integration.emulator.serving import RawConnection, Server, build_request_head
from tests.unit.emulator.events import DEADLINE_S

HANG = {"hang_s": 3600}
TALK: dict[str, Any] = {"prompt": "talk", "sampling_params": {"stream": True}}


class EventStream:
    """The server-sent events of one connection."""

    def __init__(self, wire: RawConnection) -> None:
        self._wire = wire
        self._blocks: list[str] = []

    async def next(self) -> str:
        """Return the next event or comment; empty at the end."""
        if not self._blocks:
            text = (await self._wire.read_chunk()).decode()
            if not text:
                return ""
            assert text.endswith("\n\n")
            self._blocks = text[:-2].split("\n\n")
        return self._blocks.pop(0)

    async def rest(self) -> list[str]:
        blocks = []
        while block := await self.next():
            blocks.append(block)
        return blocks


@asynccontextmanager
async def open_stream(
    server: Server, job_id: str, last_event_id: str | None = None, path: str = "/v2/other"
) -> AsyncIterator[EventStream]:
    headers = "accept: text/event-stream\r\n"
    if last_event_id is not None:
        headers += f"last-event-id: {last_event_id}\r\n"
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("GET", f"{path}/stream/{job_id}", headers))
        status, response_headers = await wire.read_head()
        assert status == 200
        assert response_headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response_headers["cache-control"] == "no-cache"
        events = EventStream(wire)
        assert await events.next() == ": open"
        yield events


def parse_end_event(block: str) -> dict[str, Any]:
    name, event_id, data = block.split("\n")
    assert (name, event_id) == ("event: end", "id: end")
    job: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return job


async def test_events_are_sent_while_the_job_runs(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        async with open_stream(server, job_id) as events:
            leased_job = await worker.take_job()
            for number, output in enumerate(["a", {"text": "é\n\n"}, None], 1):
                await worker.send_chunks(leased_job, output)
                event_id, data = (await events.next()).split("\n")
                assert event_id == f"id: 1.{number}"
                assert json.loads(data.removeprefix("data: ")) == {"output": output}
            await worker.post_result(leased_job, output=[1])
            job = parse_end_event(await events.next())
            assert job == (await client.get(f"/v2/other/status/{job_id}")).json()
            assert await events.next() == ""
        # Events take nothing from a client that asks for JSON.
        drained = (await client.get(f"/v2/other/stream/{job_id}")).json()
        assert [item["output"] for item in drained["stream"]] == ["a", {"text": "é\n\n"}, None]


async def test_each_client_receives_all_events(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await worker.send_chunks(job, *range(5))
        async with open_stream(server, job_id) as first, open_stream(server, job_id) as second:
            await worker.send_chunks(job, *range(5, 10))
            await worker.post_result(job, output=None)
            for events in (first, second):
                *blocks, end = await events.rest()
                assert blocks == [
                    f'id: 1.{number + 1}\ndata: {{"output":{number}}}' for number in range(10)
                ]
                assert parse_end_event(end)["status"] == "COMPLETED"


async def test_reconnecting_client_resumes_after_its_last_event(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id, worker = await submit_job(client), ScriptedWorker(client)
        job = await worker.take_job()
        await worker.send_chunks(job, "a", "b")
        async with open_stream(server, job_id) as events:
            assert await events.next() == 'id: 1.1\ndata: {"output":"a"}'
        await server.wait_until_no_requests()
        async with open_stream(server, job_id, last_event_id="1.1") as events:
            assert await events.next() == 'id: 1.2\ndata: {"output":"b"}'
            await worker.post_result(job, output=None)
            assert parse_end_event(await events.next())["status"] == "COMPLETED"
        # An EventSource that is not closed reconnects; only a 204 stops it.
        headers = {"accept": "text/event-stream", "last-event-id": "end"}
        response = await client.get(f"/v2/other/stream/{job_id}", headers=headers)
        assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("last_event_id", ["x", "1", "1.x", "1.2.3", "-1.1", "9" * 5000 + ".1"])
async def test_last_event_id_of_another_stream_is_400(serve: Serve, last_event_id: str) -> None:
    server = await serve()
    async with server.client() as client:
        headers = {"accept": "text/event-stream", "last-event-id": last_event_id}
        response = await client.get(f"/v2/other/stream/{await submit_job(client)}", headers=headers)
    assert response.status_code == 400
    assert read_reason(response.json()).startswith("Last-Event-ID must be the id of")


async def test_lost_worker_sends_a_restart_event(serve: Serve) -> None:
    server = await serve(worker_grace_s=0)
    async with server.client() as client:
        job_id, lost, other = (
            await submit_job(client),
            ScriptedWorker(client),
            ScriptedWorker(client, name="w2"),
        )
        await lost.send_chunks(await lost.take_job(), "a", "b")
        async with open_stream(server, job_id) as events:
            for number in (1, 2):
                assert (await events.next()).startswith(f"id: 1.{number}\n")
            await lost.drop_connection(server)
            job = await other.take_job()
            assert job["id"] == job_id
            await other.send_chunks(job, "a")
            assert await events.next() == "event: restart\ndata: {}"
            # An attempt may have been dispatched to a dropped connection in between.
            event_id, data = (await events.next()).split("\n")
            assert event_id in ("id: 2.1", "id: 3.1")
            assert data == 'data: {"output":"a"}'
            await other.post_result(job, output=["a"])
            assert parse_end_event(await events.next())["workerId"] == "w2"


async def test_silence_is_filled_with_comments(serve: Serve) -> None:
    server = await serve(stream_comments_after_s=0.02)
    async with server.client() as client:
        job_id = await submit_job(client)
        async with open_stream(server, job_id) as events:
            assert [await events.next() for _ in range(3)] == [": still here"] * 3
            await client.post(f"/v2/other/cancel/{job_id}")
            *comments, end = await events.rest()
            assert set(comments) <= {": still here"}
            assert parse_end_event(end) == {
                "id": job_id,
                "status": "CANCELLED",
                "message": "the job was cancelled before a worker took it",
            }


async def test_end_event_has_the_status_and_the_error(serve: Serve) -> None:
    server = await serve(min_execution_timeout_ms=1)
    async with server.client() as client:
        worker = ScriptedWorker(client)
        failed = await submit_job(client)
        async with open_stream(server, failed) as events:
            await worker.post_result(await worker.take_job(), error="it broke")
            job = parse_end_event(await events.next())
            assert (job["status"], job["error"]) == ("FAILED", "it broke")
        late = await submit_job(client, policy={"executionTimeout": 1_000})
        async with open_stream(server, late) as events:
            await worker.send_chunks(await worker.take_job(), "so far")
            assert (await events.next()).startswith("id: 1.1\n")
            job = parse_end_event(await events.next())
            assert job["status"] == "TIMED_OUT"
            assert "executionTimeout" in job["error"]


async def test_expired_job_sends_a_gone_event(serve: Serve) -> None:
    server = await serve(min_job_ttl_ms=1)
    async with server.client() as client:
        job_id = await submit_job(client, policy={"ttl": 2_000})
        async with open_stream(server, job_id) as events:
            assert await events.rest() == ["event: gone\ndata: {}"]


async def test_disconnected_clients_leave_no_open_requests(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        job_id = await submit_job(client)
        for reset in (False, True):
            wires = [await RawConnection.connect(server.port) for _ in range(10)]
            for wire in wires:
                await wire.send(
                    build_request_head(
                        "GET", f"/v2/other/stream/{job_id}", "accept: text/event-stream\r\n"
                    )
                )
                await wire.read_head()
            for wire in wires:
                wire.close(reset=reset)
            await server.wait_until_no_requests()
        # The job is unchanged.
        assert (await client.get(f"/v2/other/status/{job_id}")).json()["status"] == "IN_QUEUE"


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
@pytest.mark.parametrize("path", ["", "/v2/default"])
async def test_local_worker_streams_as_it_generates(
    serve: Serve, script: ScriptFactory, path: str, mode: str
) -> None:  # R59
    server = await serve(script({"pieces": ["one ", HANG]}), stream_mode=mode)
    async with server.client() as client:
        job_id = (await client.post("/run", json={"input": TALK})).json()["id"]
        async with open_stream(server, job_id, path=path) as events:
            assert "one " in await events.next()
            status = (await client.get(f"{path}/status/{job_id}")).json()
            assert status["status"] == "IN_PROGRESS"
            drained = (await client.get(f"{path}/stream/{job_id}")).json()
            assert drained["status"] == "IN_PROGRESS"
            assert "one " in json.dumps(drained["stream"])
            await client.post(f"{path}/cancel/{job_id}")
            assert parse_end_event(await events.next())["status"] == "CANCELLED"
        async with asyncio.timeout(DEADLINE_S):
            await server.wait_until_idle()

"""OpenAI calls through the job queue, with the test as the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from emulator.apis.openai.queue_routes import QueuedOpenAIRoutes
from emulator.http.responses import on_error
from emulator.http.shutdown_state import ShutdownState
from emulator.http.sse import COMMENT
from emulator.settings.emulator_settings import EmulatorSettings
from handler.errors import CallFailed, HandlerError
from jobs import Job, JobStatus, Limits, MemoryJobStore
from tests.unit.emulator.asgi import serve_routes
from tests.unit.emulator.events import DEADLINE_S
from tests.unit.emulator.streamed import comes
from tests.virtual_time import VirtualClock
from tests.waiting import run_ready_tasks, wait_until

Connect = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("no_tasks_left")

ROUTE = "/v2/e/openai/v1/completions"
STREAM = {"prompt": "x", "stream": True}
DONE = b"data: [DONE]\n\n"
ONE, TWO = "data: 1\n\n", "data: 2\n\n"


ERRORS: Any = {CallFailed: on_error, HandlerError: on_error}


class QueueFixture:
    """The routes, their store, and a worker that the test controls."""

    def __init__(self, comments_after_s: float | None = 3600) -> None:
        self.store = MemoryJobStore(Limits(max_losses=9))
        self.shutdown = ShutdownState()
        settings = EmulatorSettings(
            engine="scripted", local_worker=False, stream_comments_after_s=comments_after_s
        )
        service: Any = None
        self.queue = QueuedOpenAIRoutes(self.store, service, self.shutdown, settings)
        self.app = serve_routes(self.queue.routes(), ERRORS)
        self.job: Job

    def ask(
        self, peer: Any, path: str = ROUTE, query: bytes = b"", method: str | None = None
    ) -> asyncio.Task[None]:
        scope: dict[str, Any] = {
            "type": "http",
            "method": method or ("POST" if peer.posts else "GET"),
            "path": path,
            "root_path": "",
            "query_string": query,
            "headers": [],
        }
        return asyncio.create_task(self.app(scope, peer.receive, peer.send))

    async def take(self) -> dict[str, Any]:
        """Take the job as a worker does; return its input."""
        async with asyncio.timeout(DEADLINE_S):
            (self.job,) = await self.store.receive("e", "e/w", lease_s=3600, wait_s=DEADLINE_S)
        result: dict[str, Any] = orjson.loads(self.job.input)
        return result

    async def append_chunks(self, *values: Any) -> None:
        chunks = [orjson.dumps(value) for value in values]
        assert await self.store.append_chunks(self.job.id, self.job.attempt, chunks)

    async def end(self, output: Any = None, error: str | None = None) -> None:
        written = orjson.dumps(output)
        assert await self.store.ack(self.job.id, self.job.attempt, output=written, error=error)

    async def lose(self) -> None:
        assert await self.store.nack(self.job.id, self.job.attempt, "its worker went away")

    async def status(self) -> JobStatus:
        """Return the job's status after all pending cancellations."""
        await self.queue.close()
        job = await self.store.get(self.job.id)
        assert job is not None
        return job.status


@pytest.fixture
def peer(connection: Connect) -> Connect:
    """Return a function that makes a connection with or without a request body."""

    def make(body: dict[str, Any] | None = None) -> Any:
        result = connection((json.dumps(body).encode(),) if body is not None else ())
        result.posts = body is not None
        return result

    return make


async def wait_for_response(request_task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await request_task


def status_of(peer: Any) -> int:
    status: int = peer.sent[0]["status"]
    return status


def error_of(peer: Any) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(peer.body)["error"]
    return error


async def test_call_becomes_the_same_job_as_on_runpod(peer: Connect) -> None:  # R44
    fixture = QueueFixture()
    for path in (
        "completions",
        "chat/completions",
        "embeddings",
        "rerank",
        "score",
        "any/thing else",
    ):
        client = peer({"a": [1]})
        request_task = fixture.ask(client, f"/v2/e/openai/v1/{path}")
        assert await fixture.take() == {"openai_route": f"/v1/{path}", "openai_input": {"a": [1]}}
        assert fixture.job.sync
        await fixture.end({"is": path})
        await wait_for_response(request_task)
        assert json.loads(client.body) == {"is": path}


@pytest.mark.parametrize(
    ("method", "query", "job_input"),
    [
        ("GET", b"", {"openai_route": "/v1/files/f-1", "openai_input": {}}),
        ("GET", b"limit=2", {"openai_route": "/v1/files/f-1?limit=2", "openai_input": {}}),
        ("DELETE", b"", {"route": "/v1/files/f-1", "body": None, "method": "DELETE"}),
    ],
)
async def test_calls_without_a_body_go_to_the_worker_too(
    peer: Connect, method: str, query: bytes, job_input: dict[str, Any]
) -> None:
    fixture = QueueFixture()
    client = peer()
    request_task = fixture.ask(client, "/v2/e/openai/v1/files/f-1", query, method)
    assert await fixture.take() == job_input
    await fixture.end({"id": "f-1"})
    await wait_for_response(request_task)
    assert json.loads(client.body) == {"id": "f-1"}


async def test_complete_events_are_sent_immediately(peer: Connect) -> None:  # R29
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks(ONE[:4])
    assert client.sent == []
    await fixture.append_chunks(ONE[4:] + TWO[:3])
    await comes(client, ONE.encode())
    assert client.body == ONE.encode()
    assert await fixture.status() is JobStatus.IN_PROGRESS
    await fixture.append_chunks(TWO[3:])
    await comes(client, TWO.encode())
    assert not request_task.done()
    await fixture.end([])
    await wait_for_response(request_task)
    assert client.body == (ONE + TWO).encode() + DONE
    assert await fixture.status() is JobStatus.COMPLETED


async def test_stream_ends_at_done_before_the_job_ends(peer: Connect) -> None:
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks(ONE + DONE.decode())
    await wait_for_response(request_task)
    assert client.body == ONE.encode() + DONE
    # A stream that ended with [DONE] does not cancel its job.
    assert await fixture.status() is JobStatus.IN_PROGRESS


async def test_output_of_a_worker_that_does_not_stream(peer: Connect) -> None:
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.end(ONE + TWO)
    await wait_for_response(request_task)
    assert client.body == (ONE + TWO).encode() + DONE


async def test_body_of_a_worker_that_only_yields(peer: Connect) -> None:
    fixture = QueueFixture()
    client = peer({"prompt": "x"})
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks('{"a"', ":1}")
    # Without `return_aggregate_stream` the SDK ends with an empty list.
    await fixture.end([])
    await wait_for_response(request_task)
    assert json.loads(client.body) == {"a": 1}


async def test_comments_are_sent_in_silence(peer: Connect, clock: VirtualClock) -> None:
    # R85
    fixture = QueueFixture(comments_after_s=1)
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await clock.advance(0.9)
    # Nothing is sent yet, so an error would still have its own status.
    assert client.sent == []
    await clock.advance(0.2)
    assert client.body == COMMENT
    await fixture.append_chunks(ONE)
    await clock.advance(2.5)
    assert client.body == COMMENT + ONE.encode() + COMMENT * 2
    await fixture.end([])
    await wait_for_response(request_task)
    assert client.body.replace(COMMENT, b"") == ONE.encode() + DONE


async def test_error_after_comments_is_the_only_event(peer: Connect, clock: VirtualClock) -> None:
    fixture = QueueFixture(comments_after_s=1)
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await clock.advance(1.5)
    await fixture.end(error="it broke")
    await wait_for_response(request_task)
    [event] = client.body.removeprefix(COMMENT).removesuffix(DONE).split(b"data: ")[1:]
    assert json.loads(event)["error"]["message"] == "it broke"


async def test_comments_can_be_turned_off(peer: Connect, clock: VirtualClock) -> None:
    fixture = QueueFixture(comments_after_s=None)
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await clock.advance(100)
    assert client.sent == []
    await fixture.append_chunks(ONE)
    await clock.advance(100)
    assert client.body == ONE.encode()
    await fixture.end([])
    await wait_for_response(request_task)


@pytest.mark.long_except("body1")
@pytest.mark.parametrize("body", [{"prompt": "x"}, STREAM])
async def test_call_waits_for_a_worker_up_to_wait(
    peer: Connect, body: dict[str, Any], clock: VirtualClock
) -> None:
    fixture = QueueFixture()
    client = peer(body)
    await wait_for_response(fixture.ask(client, query=b"wait=1000"))
    assert status_of(client) == 504
    assert error_of(client) == {
        "message": "no worker of endpoint e took the call within 1 s",
        "type": "timeout_error",
        "param": None,
        "code": 504,
    }
    await fixture.queue.close()
    assert await fixture.store.receive("e", "e/w", lease_s=1) == []
    assert (await fixture.store.stats("e")).counts[JobStatus.CANCELLED] == 1


@pytest.mark.long_except("body0")
@pytest.mark.parametrize("body", [{"prompt": "x"}, STREAM])
async def test_call_that_was_taken_has_the_time_of_its_policy(
    peer: Connect, body: dict[str, Any]
) -> None:
    fixture = QueueFixture()
    client = peer(body)
    request_task = fixture.ask(client, query=b"wait=1000")
    await fixture.take()
    await asyncio.wait({request_task}, timeout=1.2)
    assert not request_task.done()
    await fixture.end({"a": 1} if "stream" not in body else ONE)
    await wait_for_response(request_task)
    assert status_of(client) == 200


async def test_job_lost_before_the_first_event_is_retried(peer: Connect) -> None:
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    for text in ((), (TWO[:-1],)):
        await fixture.take()
        await fixture.append_chunks(*text)
        # The chunk with the incomplete event has been read.
        await run_ready_tasks()
        await fixture.lose()
    await fixture.take()
    await fixture.append_chunks(ONE)
    await fixture.end([])
    await wait_for_response(request_task)
    assert client.body == ONE.encode() + DONE


@pytest.mark.parametrize("is_retried", [False, True])
async def test_job_lost_after_the_first_event_ends_the_stream_with_an_error(
    peer: Connect, is_retried: bool
) -> None:
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks(ONE)
    await comes(client, ONE.encode())
    await fixture.lose()
    if is_retried:
        await fixture.take()
        await fixture.append_chunks("data: of another answer\n\n")
    await wait_for_response(request_task)
    one, error, *rest = client.body.split(b"\n\n")
    assert one == b"data: 1"
    response = json.loads(error.removeprefix(b"data: "))["error"]
    assert response["message"] == "the worker was lost in the middle of its answer"
    assert response["code"] == 502
    assert rest == [b"data: [DONE]", b""]
    assert await fixture.status() is JobStatus.CANCELLED


async def test_failure_after_the_first_event_ends_the_stream_with_an_error(
    peer: Connect,
) -> None:  # R30
    fixture = QueueFixture()
    client = peer(STREAM)
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks(ONE)
    await comes(client, ONE.encode())
    await fixture.end(error="out of luck")
    await wait_for_response(request_task)
    error = {"message": "out of luck", "type": "worker_error", "param": None, "code": 500}
    expected = b"data: " + orjson.dumps({"error": error}) + b"\n\n" + DONE
    assert client.body == ONE.encode() + expected


@pytest.mark.parametrize("body", [{"prompt": "x"}, STREAM])
@pytest.mark.parametrize(
    ("status", "code"),
    [(JobStatus.FAILED, 500), (JobStatus.CANCELLED, 499), (JobStatus.TIMED_OUT, 504)],
)
async def test_end_without_an_output_is_an_http_error(
    peer: Connect, body: dict[str, Any], status: JobStatus, code: int
) -> None:
    fixture = QueueFixture()
    client = peer(body)
    request_task = fixture.ask(client)
    await fixture.take()
    if status is JobStatus.FAILED:
        await fixture.end(error="no")
    elif status is JobStatus.CANCELLED:
        await fixture.store.cancel(fixture.job.id)
    else:
        entry = fixture.store._state.table.find(fixture.job.id)
        assert entry is not None
        fixture.store._state.table.set_job(entry, entry.job.replace(status=status, ended_at=0.0))
    await wait_for_response(request_task)
    assert (status_of(client), error_of(client)["code"]) == (code, code)


@pytest.mark.parametrize("body", [{"prompt": "x"}, STREAM])
@pytest.mark.parametrize("when", ["waiting", "running"])
async def test_disconnect_cancels_the_job(
    peer: Connect, body: dict[str, Any], when: str
) -> None:  # R31
    fixture = QueueFixture()
    client = peer(body)
    request_task = fixture.ask(client)
    if when == "running":
        await fixture.take()
        if "stream" in body:
            await fixture.append_chunks(ONE)
            await comes(client, ONE.encode())
    else:
        await wait_until(lambda: fixture.store.has_ready_job("e"))
    client.left.set()
    await asyncio.gather(request_task, return_exceptions=True)
    await fixture.queue.close()
    assert (await fixture.store.stats("e")).counts[JobStatus.CANCELLED] == 1
    if when == "running":
        # Its worker gets a stop.
        assert await fixture.store.receive_stops("e/w", 0) == [fixture.job.id]


async def test_disconnect_of_a_blocked_client_cancels_the_job(peer: Connect) -> None:
    fixture = QueueFixture()
    client = peer(STREAM)
    client.reading.clear()
    request_task = fixture.ask(client)
    await fixture.take()
    await fixture.append_chunks(ONE)
    async with asyncio.timeout(DEADLINE_S):
        await client.blocked.wait()
    await fixture.append_chunks(TWO)
    client.left.set()
    await wait_for_response(request_task)
    assert await fixture.status() is JobStatus.CANCELLED


@pytest.mark.parametrize("body", [{"prompt": "x"}, STREAM])
async def test_shutdown_fails_queued_calls(peer: Connect, body: dict[str, Any]) -> None:
    fixture = QueueFixture()
    client = peer(body)
    request_task = fixture.ask(client)
    await wait_until(lambda: fixture.store.has_ready_job("e"))
    fixture.shutdown.start_draining()
    await wait_for_response(request_task)
    assert status_of(client) == 503
    assert error_of(client)["details"] == {"reason": "the server is shutting down"}


async def test_shutdown_lets_running_calls_finish(peer: Connect) -> None:
    fixture = QueueFixture()
    streamed, full, late = peer(STREAM), peer({"prompt": "x"}), peer(STREAM)
    request_task = []
    taken = []
    for client in (streamed, full, late):
        request_task.append(fixture.ask(client))
        await fixture.take()
        taken.append(fixture.job)
    fixture.shutdown.start_draining()
    for job, text in zip(taken, (ONE, {"a": 1}), strict=False):
        fixture.job = job
        await fixture.end(text)
    await wait_for_response(request_task[0])
    await wait_for_response(request_task[1])
    assert streamed.body == ONE.encode() + DONE
    assert json.loads(full.body) == {"a": 1}
    assert not request_task[2].done()
    fixture.shutdown.pass_deadline()
    await wait_for_response(request_task[2])
    assert status_of(late) == 503


MODELS = {"object": "list", "data": [{"id": "a"}, {"id": "b/c"}]}


async def test_models_are_listed_by_the_worker(peer: Connect) -> None:
    fixture = QueueFixture()
    for path, result in (("", MODELS), ("/b/c", {"id": "b/c"})):
        client = peer()
        request_task = fixture.ask(client, f"/v2/e/openai/v1/models{path}")
        # An empty `openai_input`, from which a worker recognises a GET.
        assert await fixture.take() == {"openai_route": "/v1/models", "openai_input": {}}
        await fixture.end([MODELS])
        await wait_for_response(request_task)
        assert json.loads(client.body) == result


async def test_unlisted_model_is_not_found(peer: Connect) -> None:  # R7
    fixture = QueueFixture()
    client = peer()
    request_task = fixture.ask(client, "/v2/e/openai/v1/models/c")
    await fixture.take()
    await fixture.end(MODELS)
    await wait_for_response(request_task)
    assert status_of(client) == 404
    assert error_of(client)["message"] == 'the model "c" does not exist, there is: a, b/c'

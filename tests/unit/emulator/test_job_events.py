"""`/stream` as events: all of it, in order, from where the client was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from handler.errors import InvalidRequest
from jobs import Job, JobStatus, NewJob
from tests.unit.emulator.streamed import StreamedJob, comes
from tests.waiting import run_ready_tasks

Connect = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("no_tasks_left")


async def test_events_are_sent_as_chunks_arrive(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    listening = at.listen(peer)
    await comes(peer, b": open\n\n")
    await at.append_chunks({"text": "é\n"})
    await comes(peer, 'id: 1.1\ndata: {"output":{"text":"é\\n"}}\n\n'.encode())
    await at.append_chunks("b", "c")
    await comes(peer, b'id: 1.3\ndata: {"output":"c"}\n\n')
    await at.end(b'["all"]')
    await listening
    head, *_ = peer.sent
    assert dict(head["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    blocks = peer.body.decode().split("\n\n")
    kind, last, data = blocks[-2].split("\n")
    assert (kind, last) == ("event: end", "id: end")
    status = orjson.loads(data.removeprefix("data: "))
    assert (status["status"], status["output"]) == ("COMPLETED", ["all"])
    assert "message" not in status
    assert "still here" not in peer.body.decode()
    # The events have drained no chunk from clients that request JSON.
    assert await at.answered(connection()) == ("COMPLETED", [{"text": "é\n"}, "b", "c"])


async def test_line_separators_do_not_end_an_event(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    text = "a\u2028data: [DONE]\u2029b\u0085c"
    await at.append_chunks(text)
    await at.end(orjson.dumps([text]))
    await at.listen(peer)
    events = [event.splitlines() for event in peer.body.decode().split("\n\n")]
    assert [len(lines) for lines in events] == [1, 2, 3, 0]
    assert orjson.loads(events[1][1].removeprefix("data: ")) == {"output": text}
    assert orjson.loads(events[2][2].removeprefix("data: "))["output"] == [text]


@pytest.mark.parametrize(
    ("worker", "message"),
    [("e/local", "the job did not ask to stream"), ("e/w", "worker w returned its output without")],
)
async def test_end_without_chunks_has_a_message(
    connection: Connect, worker: str, message: str
) -> None:  # R59
    at, peer = StreamedJob(), connection()
    await at.begin(worker)
    await at.end()
    await at.listen(peer)
    data = peer.body.decode().split("\n\n")[-2].split("\n")[-1]
    assert orjson.loads(data.removeprefix("data: "))["message"].startswith(message)


async def test_end_of_a_cancelled_job_has_its_status(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    await at.append_chunks("a")
    await at.store.cancel(at.job.id)
    await at.listen(peer)
    data = peer.body.decode().split("\n\n")[-2].split("\n")[-1]
    end = orjson.loads(data.removeprefix("data: "))
    assert (end["status"], end["message"]) == ("CANCELLED", "the job was cancelled after 1 chunk")


@pytest.mark.parametrize("between", range(6))
async def test_end_comes_after_all_chunks(connection: Connect, between: int) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    listening = at.listen(peer)
    await comes(peer, b": open\n\n")
    await at.append_chunks("a")
    await run_ready_tasks(between)
    await at.append_chunks("b")
    await at.end()
    await listening
    marks = [line for line in peer.body.decode().split("\n") if line.startswith("id: ")]
    assert marks == ["id: 1.1", "id: 1.2", "id: end"]


async def test_events_resume_after_the_last_event_id(connection: Connect) -> None:
    at = StreamedJob()
    await at.begin()
    await at.append_chunks("a", "b", "c")
    await at.end()
    for last, expected in (
        ("", ["1.1", "1.2", "1.3", "end"]),
        ("1.0", ["1.1", "1.2", "1.3", "end"]),
        ("1.2", ["1.3", "end"]),
        ("1.3", ["end"]),
        ("1.999", ["end"]),
    ):
        peer = connection()
        await at.listen(peer, last)
        lines = peer.body.decode().split("\n")
        assert [line[4:] for line in lines if line.startswith("id: ")] == expected
        assert "event: restart" not in lines


async def test_reconnect_after_the_end_is_204(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    await at.append_chunks("a")
    waiting = connection()
    listening = at.listen(waiting, "end")
    await comes(waiting, b"id: 1.1\n")
    await at.end()
    await listening
    await at.listen(peer, "end")
    assert [message.get("status") for message in peer.sent] == [204, None]
    assert peer.body == b""


@pytest.mark.parametrize(
    "last", ["x", "1", "1.", ".1", "1.x", "-1.2", "1.2.3", "²", "1." + "9" * 5000, "ends"]
)
async def test_invalid_last_event_id_is_rejected(connection: Connect, last: str) -> None:
    at = StreamedJob()
    await at.begin()
    with pytest.raises(InvalidRequest, match="Last-Event-ID must be the id of an event"):
        await at.stream.respond(
            connection().request(accept="text/event-stream", last_event_id=last), at.job
        )


async def test_lost_attempt_sends_a_restart(connection: Connect) -> None:
    at, peer, late, resumed = StreamedJob(), connection(), connection(), connection()
    await at.begin()
    listening = at.listen(peer)
    await at.append_chunks("a", "b")
    await comes(peer, b"id: 1.2\n")
    await at.lose()
    await at.begin()
    await at.append_chunks("a")
    await comes(peer, b'event: restart\ndata: {}\n\nid: 2.1\ndata: {"output":"a"}\n\n')
    await at.end()
    await listening
    assert peer.body.count(b"event: restart") == 1
    # A reader that resumes from the lost attempt gets a restart too, a new one does not.
    await at.listen(resumed, "1.2")
    assert b"event: restart\ndata: {}\n\nid: 2.1\n" in resumed.body
    await at.listen(late)
    assert b"restart" not in late.body


async def test_lost_attempt_sends_a_restart_when_the_next_streams_nothing(
    connection: Connect,
) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    listening = at.listen(peer)
    await at.append_chunks("a")
    await comes(peer, b"id: 1.1\n")
    await at.lose()
    await at.begin()
    await at.end()
    await listening
    assert b"event: restart\ndata: {}\n\nevent: end\n" in peer.body


async def test_comments_are_sent_during_silence(connection: Connect) -> None:
    at, peer = StreamedJob(comments_after_s=0.01), connection()
    await at.begin()
    listening = at.listen(peer)
    await comes(peer, b": open\n\n: still here\n\n: still here\n\n")
    await at.end()
    await listening


async def test_deleted_job_ends_the_events(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    job = await at.store.enqueue(NewJob(endpoint="e", input=b"{}"))
    at.job = job
    listening = at.listen(peer)
    await comes(peer, b": open\n\n")
    await at.store.cancel(job.id)
    await listening
    assert b'"status":"CANCELLED"' in peer.body
    at.job = Job(id="gone", endpoint="e", input=b"", created_at=0)
    dropped = connection()
    await at.listen(dropped)
    assert dropped.body == b": open\n\nevent: gone\ndata: {}\n\n"


async def test_disconnected_listener_leaves_no_task(connection: Connect) -> None:
    at, peer = StreamedJob(), connection()
    await at.begin()
    listening = at.listen(peer)
    await comes(peer, b": open\n\n")
    peer.left.set()
    await listening
    # The job goes on.
    await at.append_chunks("a")
    await at.end()
    job = await at.store.get(at.job.id)
    assert job is not None
    assert job.status is JobStatus.COMPLETED

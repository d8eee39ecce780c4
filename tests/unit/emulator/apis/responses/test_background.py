"""Background responses in the store of jobs: their state, and streams over several attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.apis.responses.background import (
    BackgroundResponses,
    encode_response,
    read_starting_after,
)
from handler.apis.responses.events import EventEncoder
from handler.errors import InvalidRequest, NotFound
from jobs import Job, JobStatus, MemoryJobStore, NewJob, Policy
from tests.waiting import run_ready_tasks

ENVELOPE = {"id": "", "object": "response", "status": "in_progress", "created_at": 7, "output": []}
WORK = {"input": "hi", "background": True, "created_at": 7}
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def store() -> AsyncIterator[MemoryJobStore]:
    started = MemoryJobStore()
    await started.start()
    yield started
    await started.close()


@pytest.fixture
def background(store: MemoryJobStore) -> BackgroundResponses:
    # The service is only needed to create responses.
    return BackgroundResponses(store, cast("Any", None), "default", Policy())


async def enqueue(store: MemoryJobStore, **changes: Any) -> Job:
    job_input = {
        "openai_route": "/v1/responses",
        "openai_input": WORK,
        "envelope": ENVELOPE,
        **changes,
    }
    return await store.enqueue(NewJob(endpoint="default", input=orjson.dumps(job_input)))


async def lease(store: MemoryJobStore) -> Job:
    (job,) = await store.receive("default", "default/w", lease_s=60)
    return job


def events_of(texts: list[str], *, ended: bool = True) -> list[bytes]:
    """Return the events that a worker sends: the start, a delta for each text, and the end."""
    encoder = EventEncoder(first=2)
    events = [encoder.encode("response.in_progress", {})]
    events += [encoder.encode("response.output_text.delta", {"delta": text}) for text in texts]
    if ended:
        response = {"id": "resp_x", "status": "completed", "text": "".join(texts)}
        events.append(encoder.encode("response.completed", {"response": response}))
    return events


def as_chunks(events: list[bytes], sizes: list[int]) -> list[bytes]:
    """Return events as the JSON of chunks with so many events each."""
    chunks, start = [], 0
    for size in [*sizes, len(events)]:
        if block := b"".join(events[start : start + size]):
            chunks.append(orjson.dumps(block.decode()))
        start += size
    return chunks


async def read(stream: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    """Return the events of a stream, which ends with [DONE]."""
    blocks = b"".join([block async for block in stream])
    assert blocks.endswith(DONE)
    return [
        orjson.loads(line.removeprefix(b"data: "))
        for line in blocks.split(b"\n")
        if line.startswith(b"data: {")
    ]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("delta", "") for event in events)


@given(
    texts=st.lists(st.text(min_size=1, max_size=5), max_size=6),
    sizes=st.lists(st.integers(1, 3), max_size=6),
    lost=st.integers(0, 8),
    after=st.integers(-1, 12),
)
def test_reader_gets_all_events_without_duplicates_when_the_first_attempt_is_lost(
    texts: list[str], sizes: list[int], lost: int, after: int
) -> None:
    async def run() -> list[dict[str, Any]]:
        store = MemoryJobStore()
        await store.start()
        background = BackgroundResponses(store, cast("Any", None), "default", Policy())
        job = await enqueue(store)
        reader = asyncio.create_task(read(background.stream(job, after)))
        first = await lease(store)
        # The first attempt is lost after some of its chunks, in another division.
        await store.append_chunks(job.id, first.attempt, as_chunks(events_of(texts)[:lost], [1]))
        await run_ready_tasks()
        await store.nack(job.id, first.attempt, "lost")
        second = await lease(store)
        await store.append_chunks(job.id, second.attempt, as_chunks(events_of(texts), sizes))
        await store.ack(job.id, second.attempt, output=b'{"status": "completed"}')
        events = await reader
        await store.close()
        return events

    events = asyncio.run(run())
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(after + 1, len(texts) + 4))
    expected_texts = texts[max(0, after - 2) :]
    assert text_of(events) == "".join(expected_texts)


async def test_end_is_sent_when_the_job_has_ended(
    store: MemoryJobStore, background: BackgroundResponses
) -> None:
    job = await enqueue(store)
    blocks: list[bytes] = []

    async def collect() -> None:
        async for block in background.stream(job):
            blocks.append(block)  # noqa: PERF401 - read while they come

    reader = asyncio.create_task(collect())
    leased = await lease(store)
    await store.append_chunks(job.id, leased.attempt, as_chunks(events_of(["a"]), []))
    await run_ready_tasks()
    sent = b"".join(blocks)
    assert b"event: response.output_text.delta\n" in sent
    assert b"event: response.completed\n" not in sent
    await store.ack(job.id, leased.attempt, output=b'{"status": "completed"}')
    await reader
    assert b"".join(blocks).count(b"event: response.completed\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            '{"error": {"type": "engine_error", "message": "no memory"}}',
            "engine_error",
            "no memory",
        ),
        ("the job was lost 3 times", "server_error", "the job was lost 3 times"),
    ],
)
async def test_failed_job_ends_the_stream_with_its_error(
    store: MemoryJobStore,
    background: BackgroundResponses,
    error: str,
    code: str,
    message: str,
) -> None:
    job = await enqueue(store)
    leased = await lease(store)
    chunks = as_chunks(events_of(["a"], ended=False), [])
    await store.append_chunks(job.id, leased.attempt, chunks)
    await store.ack(job.id, leased.attempt, error=error)
    events = await read(background.stream(job))
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3, 4]
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": code, "message": message}
    # A reader that resumes before the last event gets only the last event.
    assert [event["type"] for event in await read(background.stream(job, 3))] == ["response.failed"]


async def test_removed_response_ends_its_stream_with_an_error(
    store: MemoryJobStore, background: BackgroundResponses
) -> None:
    job = await enqueue(store)
    reader = asyncio.create_task(read(background.stream(job)))
    await run_ready_tasks()
    assert await background.remove(f"resp_{job.id}")
    events = await reader
    assert events[-1]["type"] in ("error", "response.cancelled")
    assert not await background.remove(f"resp_{job.id}")
    with pytest.raises(NotFound):
        await background.cancel(f"resp_{job.id}")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (JobStatus.IN_QUEUE, "queued"),
        (JobStatus.IN_PROGRESS, "in_progress"),
        (JobStatus.CANCELLED, "cancelled"),
        (JobStatus.TIMED_OUT, "failed"),
    ],
)
async def test_response_has_the_state_of_its_job(
    store: MemoryJobStore, status: JobStatus, expected: str
) -> None:
    job = (await enqueue(store)).replace(status=status)
    response = encode_response(job)
    assert (response["status"], response["id"]) == (expected, f"resp_{job.id}")
    assert response["created_at"] == 7
    assert (response["error"] is not None) is (status is JobStatus.TIMED_OUT)


@pytest.mark.parametrize("output", [{"a": 1}, ["event: x\n\n", {"a": 1}]])
async def test_response_of_a_completed_job_is_its_output(
    store: MemoryJobStore, output: Any
) -> None:
    job = (await enqueue(store)).replace(output=orjson.dumps(output))
    assert encode_response(job) == {"a": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"openai_route": "/v1/chat/completions"},
        {"openai_input": {"input": "hi"}},
        {"openai_input": None},
    ],
)
async def test_other_jobs_are_no_responses(
    store: MemoryJobStore, background: BackgroundResponses, changes: dict[str, Any]
) -> None:
    job = await enqueue(store, **changes)
    assert await background.find(f"resp_{job.id}") is None
    assert await background.find(job.id) is None
    with pytest.raises(NotFound, match="no background response"):
        await background.get_job(f"resp_{job.id}")


# Inputs and outputs that a client or a custom worker can set on such a job.
_DEEP: Any = orjson.loads('{"a":' * 253 + "1" + "}" * 253)
WRONG_INPUTS: list[dict[str, Any]] = [
    {"envelope": [1]},
    {"envelope": "x"},
    {"openai_input": WORK | {"input": 5}},
    {"openai_input": WORK | {"input": [1]}},
    {"openai_input": WORK | {"previous_response_id": []}},
    {"openai_input": [WORK]},
]
WRONG_OUTPUTS: list[Any] = [[], [1], 5, "x", None, [[]], _DEEP]


async def test_forged_job_is_no_response(
    store: MemoryJobStore, background: BackgroundResponses, subtests: pytest.Subtests
) -> None:
    for changes in WRONG_INPUTS:
        with subtests.test(changes=changes):
            job = await enqueue(store, **changes)
            assert await background.find(f"resp_{job.id}") is None
            with pytest.raises(NotFound, match="no background response"):
                await background.cancel(f"resp_{job.id}")
    for output in WRONG_OUTPUTS:
        with subtests.test(output=str(output)[:20]):
            job = await enqueue(store)
            reader = asyncio.create_task(read(background.stream(job)))
            await run_ready_tasks()
            while (leased := await lease(store)).id != job.id:
                await store.ack(leased.id, leased.attempt, error="x")
            await store.ack(job.id, leased.attempt, output=orjson.dumps(output))
            # The client that was reading it gets an end.
            events = await reader
            assert events[-1]["type"] == "response.failed"
            error = events[-1]["response"]["error"]
            assert error["message"] == "the worker's output is not a response"
            assert await background.find(f"resp_{job.id}") is None
            with pytest.raises(NotFound, match="no background response"):
                await background.cancel(f"resp_{job.id}")


async def test_stream_leaves_out_chunks_that_are_no_events(
    store: MemoryJobStore, background: BackgroundResponses
) -> None:
    job = await enqueue(store)
    leased = await lease(store)
    forged = ["x\ndata: {\n\n", "x\ndata: 5\n\n", "x\ndata: {}\n\n", 5, [], {"a": 1}]
    forged += ['x\ndata: {"sequence_number": "1", "type": []}\n\n']
    await store.append_chunks(job.id, leased.attempt, [orjson.dumps(each) for each in forged])
    await store.append_chunks(job.id, leased.attempt, as_chunks(events_of(["a"]), []))
    await store.ack(job.id, leased.attempt, output=b'{"status": "completed"}')
    events = await read(background.stream(job))
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3, 4]


async def test_end_has_a_known_type_whatever_the_status_of_the_output(
    store: MemoryJobStore, background: BackgroundResponses
) -> None:
    statuses: list[Any] = [None, [], "completed\nevent: x", "queued"]
    for status in statuses:
        job = await enqueue(store)
        leased = await lease(store)
        await store.ack(job.id, leased.attempt, output=orjson.dumps({"status": status}))
        events = await read(background.stream(job))
        assert events[-1]["type"] == "response.failed"


@pytest.mark.parametrize(("raw", "number"), [(None, -1), ("0", 0), ("12", 12)])
def test_number_to_resume_after_is_read(raw: str | None, number: int) -> None:
    assert read_starting_after(raw) == number


@pytest.mark.parametrize("raw", ["", "x", "-1", "1.5", "²", "9" * 10])
def test_wrong_number_to_resume_after_is_refused(raw: str) -> None:
    with pytest.raises(InvalidRequest, match="starting_after must be"):
        read_starting_after(raw)

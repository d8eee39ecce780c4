"""The memory that a full store takes is within its limit, for every kind of job."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Awaitable, Callable

import orjson
import pytest

from jobs import Job, JobStatus, Limits, MemoryJobStore, NewJob, StoreFull
from jobs.memory.memory_size import JOB_OVERHEAD_BYTES, job_memory_bytes

_LIMIT_BYTES = 1_000_000
_TOLERANCE = 1.2
# More jobs than fit, so that a store that counts too little fails the test and does not go on.
_MAX_JOBS = 5_000
_EVENT = orjson.dumps('event: response.output_text.delta\ndata: {"delta": "a"}\n\n')
_numbers = itertools.count()


async def _enqueue(store: MemoryJobStore, endpoint: str = "e", content: object = "hi") -> Job:
    return await store.enqueue(NewJob(endpoint=endpoint, input=orjson.dumps(content)))


async def _stream(store: MemoryJobStore, chunk: bytes, count: int, content: object = "hi") -> None:
    await _enqueue(store, content=content)
    (job,) = await store.receive("e", "e/w", lease_s=60)
    for number in range(count):
        # A distinct value, like each one from the network.
        await store.append_chunks(job.id, job.attempt, [chunk[:-1] + b"%d" % number + chunk[-1:]])
    await store.ack(job.id, job.attempt, output=b"1")


async def _plain(store: MemoryJobStore) -> None:
    await _enqueue(store)


async def _long_list(store: MemoryJobStore) -> None:
    await _enqueue(store, content=[0] * 10_000)


async def _deep_list(store: MemoryJobStore) -> None:
    content: object = 1
    for _ in range(200):
        content = [content]
    await _enqueue(store, content=content)


async def _own_endpoint(store: MemoryJobStore) -> None:
    await _enqueue(store, f"endpoint {next(_numbers)}")


async def _failed(store: MemoryJobStore) -> None:
    await _enqueue(store)
    (job,) = await store.receive("e", "e/w", lease_s=60)
    await store.save_progress(job.id, job.attempt, b"%d" % next(_numbers))
    await store.ack(job.id, job.attempt, error=f"\U0001f600{next(_numbers)}" * 100)


async def _output(store: MemoryJobStore) -> None:
    await _enqueue(store)
    (job,) = await store.receive("e", "e/w", lease_s=60)
    await store.ack(job.id, job.attempt, output=orjson.dumps([[]] * 5_000))


async def _small_chunks(store: MemoryJobStore) -> None:
    await _stream(store, b'""', 500)


async def _background(store: MemoryJobStore) -> None:
    work = {"input": "hi", "background": True}
    content = {"openai_route": "/v1/responses", "openai_input": work, "envelope": {}}
    await _stream(store, _EVENT, 100, content)


async def _fill(store: MemoryJobStore, submit: Callable[[MemoryJobStore], Awaitable[None]]) -> None:
    for _ in range(_MAX_JOBS):
        await submit(store)


@pytest.mark.parametrize(
    "submit",
    [
        *(_plain, _long_list, _deep_list, _own_endpoint),
        *(_failed, _output, _small_chunks, _background),
    ],
)
async def test_full_store_takes_no_more_memory_than_its_limit(
    submit: Callable[[MemoryJobStore], Awaitable[None]],
) -> None:
    first = MemoryJobStore(limits=Limits(max_bytes=_LIMIT_BYTES))
    await first.start()
    # Objects that a process creates on first use, such as imported modules, are not the store's.
    await submit(first)
    await first.close()
    store = MemoryJobStore(limits=Limits(max_bytes=_LIMIT_BYTES))
    await store.start()
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(StoreFull):
            await _fill(store, submit)
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await store.close()
    assert _LIMIT_BYTES / 3 < taken_bytes < _LIMIT_BYTES * _TOLERANCE


def test_texts_of_a_job_are_counted() -> None:
    job = Job(id="a", endpoint="e", input=b"12", created_at=0.0)
    assert job_memory_bytes(job) == JOB_OVERHEAD_BYTES + 3
    failed = job.replace(status=JobStatus.FAILED, error="é" * 10, webhook="http://a")
    assert job_memory_bytes(failed) > job_memory_bytes(job) + 4 * 10 + 8

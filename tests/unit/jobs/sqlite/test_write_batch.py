"""Collecting changes, splitting them into batches, and merging a failed batch."""

from __future__ import annotations

import asyncio

import pytest

from jobs import Chunk, Job, JobStatus
from jobs.sqlite import write_batch as module
from jobs.sqlite.write_batch import WriteBatch


def job(name: str, text: bytes = b"", **fields: object) -> Job:
    return Job(id=name, endpoint="e", input=text, created_at=0.0).replace(**fields)


def parts(batch: WriteBatch) -> tuple[list[str], list[str], list[str]]:
    return list(batch.deleted), list(batch.jobs), list(batch.chunks)


def test_save_keeps_and_counts_the_latest_state() -> None:
    pending = WriteBatch()
    assert not pending
    pending.save(job("a", b"12"))
    pending.save(job("a", b"1234"))
    pending.append_chunks("a", [Chunk(1, 1, b"567")])
    assert (len(pending.jobs), pending.bytes) == (1, 7)
    pending.delete("a", on_disk=False)
    assert (pending.bytes, bool(pending)) == (0, False)
    pending.delete("b", on_disk=True)
    assert parts(pending) == (["b"], [], [])


def test_save_of_a_requeued_job_drops_its_chunks() -> None:
    pending = WriteBatch()
    pending.append_chunks("a", [Chunk(1, 1, b"12")])
    pending.save(job("a", status=JobStatus.IN_QUEUE, attempt=1))
    assert (pending.chunks, pending.bytes) == ({}, 0)


async def test_split_respects_limits_and_puts_waiters_in_the_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_JOBS", 2)
    monkeypatch.setattr(module, "MAX_BATCH_BYTES", 10)
    monkeypatch.setattr(module, "MAX_BATCH_CHUNKS", 2)
    pending = WriteBatch()
    pending.delete("gone", on_disk=True)
    for name, size in [("a", 1), ("b", 1), ("c", 10), ("d", 1)]:
        pending.save(job(name, b"x" * size))
    pending.append_chunks("a", [Chunk(1, 1, b"y"), Chunk(1, 2, b"y")])
    pending.append_chunks("d", [Chunk(1, 1, b"y" * 9)])
    pending.append_chunks("b", [Chunk(1, 1, b"y")])
    pending.waiters.append(asyncio.get_running_loop().create_future())
    batches = pending.split()
    assert [parts(batch) for batch in batches] == [
        (["gone"], ["a", "b"], []),
        ([], ["c"], []),
        ([], ["d"], ["a"]),
        ([], [], ["d", "b"]),
    ]
    assert [len(batch.waiters) for batch in batches] == [0, 0, 0, 1]
    assert sum(batch.bytes for batch in batches) == pending.bytes


def test_put_back_keeps_newer_changes() -> None:
    batch, pending = WriteBatch(), WriteBatch()
    batch.delete("gone", on_disk=True)
    for name in ("old", "newer", "deleted since", "again"):
        batch.save(job(name, b"1", status=JobStatus.IN_PROGRESS))
        batch.append_chunks(name, [Chunk(1, 1, b"1")])
    pending.save(job("newer", b"22", status=JobStatus.COMPLETED))
    pending.append_chunks("newer", [Chunk(1, 2, b"2")])
    pending.delete("deleted since", on_disk=True)
    pending.save(job("again", b"1", status=JobStatus.IN_QUEUE, attempt=1))
    pending.put_back(batch)
    assert pending.jobs["newer"].status is JobStatus.COMPLETED
    assert sorted(pending.jobs) == ["again", "newer", "old"]
    assert sorted(pending.deleted) == ["deleted since", "gone"]
    assert pending.chunks == {
        "old": [Chunk(1, 1, b"1")],
        "newer": [Chunk(1, 1, b"1"), Chunk(1, 2, b"2")],
    }
    assert pending.bytes == sum(each.size for each in pending.jobs.values()) + 3

"""What gathers for the disk, is cut into batches, and comes back from one that failed."""

from __future__ import annotations

import asyncio

import pytest

from jobs import Chunk, Job, JobStatus
from jobs.sqlite import write_batch as module
from jobs.sqlite.write_batch import Pending


def job(name: str, text: bytes = b"", **fields: object) -> Job:
    return Job(id=name, endpoint="e", input=text, created_at=0.0).but(**fields)


def parts(batch: Pending) -> tuple[list[str], list[str], list[str]]:
    return list(batch.forgotten), list(batch.jobs), list(batch.chunks)


def test_the_newest_state_is_kept_and_counted() -> None:
    pending = Pending()
    assert not pending
    pending.save(job("a", b"12"))
    pending.save(job("a", b"1234"))
    pending.append("a", [Chunk(1, 1, b"567")])
    assert (len(pending.jobs), pending.bytes) == (1, 7)
    pending.forget("a", on_disk=False)
    assert (pending.bytes, bool(pending)) == (0, False)
    pending.forget("b", on_disk=True)
    assert parts(pending) == (["b"], [], [])


def test_a_job_that_waits_again_has_streamed_nothing() -> None:
    pending = Pending()
    pending.append("a", [Chunk(1, 1, b"12")])
    pending.save(job("a", status=JobStatus.IN_QUEUE, attempt=1))
    assert (pending.chunks, pending.bytes) == ({}, 0)


async def test_it_is_cut_into_batches_of_which_the_last_has_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_JOBS", 2)
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "MOST_CHUNKS", 2)
    pending = Pending()
    pending.forget("gone", on_disk=True)
    for name, size in [("a", 1), ("b", 1), ("c", 10), ("d", 1)]:
        pending.save(job(name, b"x" * size))
    pending.append("a", [Chunk(1, 1, b"y"), Chunk(1, 2, b"y")])
    pending.append("d", [Chunk(1, 1, b"y" * 9)])
    pending.append("b", [Chunk(1, 1, b"y")])
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


def test_what_was_not_written_comes_back_behind_nothing_newer() -> None:
    batch, pending = Pending(), Pending()
    batch.forget("gone", on_disk=True)
    for name in ("old", "newer", "since gone", "again"):
        batch.save(job(name, b"1", status=JobStatus.IN_PROGRESS))
        batch.append(name, [Chunk(1, 1, b"1")])
    pending.save(job("newer", b"22", status=JobStatus.COMPLETED))
    pending.append("newer", [Chunk(1, 2, b"2")])
    pending.forget("since gone", on_disk=True)
    pending.save(job("again", b"1", status=JobStatus.IN_QUEUE, attempt=1))
    pending.put_back(batch)
    assert pending.jobs["newer"].status is JobStatus.COMPLETED
    assert sorted(pending.jobs) == ["again", "newer", "old"]
    assert sorted(pending.forgotten) == ["gone", "since gone"]
    assert pending.chunks == {
        "old": [Chunk(1, 1, b"1")],
        "newer": [Chunk(1, 1, b"1"), Chunk(1, 2, b"2")],
    }
    assert pending.bytes == sum(each.size for each in pending.jobs.values()) + 3

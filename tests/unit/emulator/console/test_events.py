"""The events of one job: resuming, and replacing the output of an earlier attempt."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulator.console.events import JobEventStream
from emulator.console.generation_tracker import GenerationTracker
from handler.generation.active_generation import ActiveGeneration
from jobs import Job, MemoryJobStore, NewJob

WORKER = "default/local"


class Spoken:
    """A fake generation with the texts that a reader may get."""

    def __init__(self, job_id: str, *texts: str) -> None:
        self.request = SimpleNamespace(generation=SimpleNamespace(request_id=job_id))
        self.texts = list(texts)

    def deltas_after(self, after: int) -> list[str]:
        return self.texts[after:]


class Scene:
    """A leased job, its reader, and the engine's active generations."""

    def __init__(self) -> None:
        self.store = MemoryJobStore()
        self.answers = GenerationTracker()

    async def begin(self) -> None:
        self.job = await self.store.enqueue(NewJob(endpoint="default", input=b'{"prompt":"x"}'))
        await self.take()
        watch = JobEventStream(self.store, self.answers, self.job.id)
        self.events: AsyncGenerator[bytes, None] = watch.events()

    async def take(self) -> Job:
        (self.job,) = await self.store.receive("default", WORKER, lease_s=60)
        return self.job

    def speak(self, *texts: str) -> Spoken:
        spoken = Spoken(self.job.id, *texts)
        self.answers.add(cast("ActiveGeneration", spoken))
        return spoken

    async def next(self) -> list[tuple[str, Any]]:
        block = (await anext(self.events)).decode()
        lines = [event.split("\n") for event in block.removesuffix("\n\n").split("\n\n")]
        return [
            (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
            for name, data in lines
        ]


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.begin()
    return scene


async def test_only_new_deltas_are_sent(scene: Scene) -> None:
    spoken = scene.speak("a", "b")
    (state, deltas) = await scene.next()
    assert (state[0], state[1]["status"]) == ("job", "IN_PROGRESS")
    assert deltas == ("deltas", {"first": 0, "texts": ["a", "b"]})
    spoken.texts.append("c")
    assert await scene.next() == [("deltas", {"first": 2, "texts": ["c"]})]


async def test_second_generation_sends_a_restart(scene: Scene) -> None:
    first = scene.speak("not", " JSON")
    await scene.next()
    second = scene.speak("[]")
    events = await scene.next()
    assert [name for name, _ in events if name != "job"] == ["restart", "deltas"]
    assert events[-1][1] == {"first": 0, "texts": ["[]"]}
    assert first is not second


async def test_new_attempt_sends_a_restart(scene: Scene) -> None:
    spoken = scene.speak("half")
    await scene.next()
    await scene.store.nack(scene.job.id, scene.job.attempt)
    await scene.take()
    events = await scene.next()
    assert events[0] == ("restart", {})
    assert events[1][1]["attempt"] == 2
    assert spoken.texts == ["half"]


async def test_no_restart_is_sent_when_no_text_was_sent(scene: Scene) -> None:
    await scene.next()
    await scene.store.nack(scene.job.id, scene.job.attempt)
    await scene.take()
    assert [name for name, _ in await scene.next()] == ["job"]


async def test_new_attempt_of_another_worker_sends_a_restart(scene: Scene) -> None:
    await scene.next()
    await scene.store.append_chunks(scene.job.id, scene.job.attempt, [b'"half"'])
    assert await scene.next() == [("chunk", {"output": "half"})]
    await scene.store.nack(scene.job.id, scene.job.attempt)
    await scene.take()
    await scene.store.append_chunks(scene.job.id, scene.job.attempt, [b'"again"'])
    assert [name for name, _ in await scene.next()] == ["restart", "job", "chunk"]


async def test_progress_is_sent_when_it_changes_and_of_a_large_one_the_size(scene: Scene) -> None:
    await scene.next()
    for progress in (b"1", b'"half"', b'"%b"' % (b"x" * 100_000)):
        await scene.store.save_progress(scene.job.id, scene.job.attempt, progress)
        expected = {"bytes": 100_002} if len(progress) > 9 else {"output": json.loads(progress)}
        assert await scene.next() == [("progress", expected)]
    await scene.store.nack(scene.job.id, scene.job.attempt)
    await scene.take()
    await scene.store.save_progress(scene.job.id, scene.job.attempt, b"1")
    events = await scene.next()
    assert [name for name, _ in events] == ["job", "progress"]


async def test_queued_job_has_a_message_with_the_reason_for_its_wait(scene: Scene) -> None:
    await scene.store.nack(scene.job.id, scene.job.attempt)
    events = JobEventStream(
        scene.store, scene.answers, scene.job.id, explain_wait=lambda job: f"{job.endpoint} waits"
    ).events()
    assert b'"message":"default waits"' in await anext(events)


async def test_line_separators_do_not_end_an_event(scene: Scene) -> None:
    spoken = scene.speak("a\u2028data: b\u2029c\u0085d")
    block = (await anext(scene.events)).decode()
    assert [len(event.splitlines()) for event in block.split("\n\n")] == [2, 2, 0]
    assert spoken.texts[0] not in block


async def test_events_of_a_deleted_job_end(scene: Scene) -> None:
    events = JobEventStream(scene.store, scene.answers, "another").events()
    assert [event async for event in events] == [b"event: gone\ndata: {}\n\n"]


async def test_poll_interval_grows_while_nothing_is_new(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken, waits, read = scene.speak("a"), list[float](), scene.store.read_chunks

    async def noted(job_id: str, after: Any, wait_s: float) -> Any:
        if wait_s:
            waits.append(wait_s)
            if len(waits) == 10:
                spoken.texts.append("b")
            if len(waits) == 12:
                await scene.store.ack(scene.job.id, scene.job.attempt, output=b"1")
        return await read(job_id, after, 0)

    monkeypatch.setattr(scene.store, "read_chunks", noted)
    async for _ in scene.events:
        pass
    assert waits[:10] == sorted(waits[:10])
    assert waits[9] == 0.1
    assert waits[0] == waits[10] < 0.02
    assert len(waits) == 12


async def test_chunks_of_a_local_generation_have_no_duplicates(scene: Scene) -> None:
    spoken = scene.speak("a")
    await scene.next()
    await scene.store.append_chunks(scene.job.id, scene.job.attempt, [b'{"again":"a"}'])
    spoken.texts.append("b")
    assert await scene.next() == [("deltas", {"first": 1, "texts": ["b"]})]


async def test_last_deltas_are_sent_before_the_end(scene: Scene) -> None:
    spoken = scene.speak("a")
    await scene.next()
    spoken.texts.append("b")
    # The worker drops its generation before the stream reads it another time.
    del spoken
    await scene.store.ack(scene.job.id, scene.job.attempt, output=b'"all"')
    events = await scene.next()
    assert [name for name, _ in events] == ["job", "deltas"]
    ((name, end),) = await scene.next()
    assert (name, end["output"], end["status"]) == ("end", "all", "COMPLETED")
    with pytest.raises(StopAsyncIteration):
        await scene.next()


def track(*requests: tuple[str, str]) -> tuple[GenerationTracker, list[Spoken]]:
    """Return a tracker of generations whose first texts came at 1.0, 2.0, 3.0 and so on."""
    times = itertools.count(1.0)
    tracker = GenerationTracker(lambda: next(times))
    generations = [Spoken(name, text) for name, text in requests]
    for each in generations:
        tracker.add(cast("ActiveGeneration", each))
    return tracker, generations


def test_tracker_keeps_only_the_newest_generations() -> None:
    tracker, generations = track(*((str(number), "x") for number in range(10_001)))
    names = ("0", "1", "10000")
    assert [tracker.first_text_at(name) for name in names] == [None, 2.0, 10_001.0]
    assert [tracker.find(name) is not None for name in names] == [False, True, True]
    # The time is kept after the generation has ended.
    generations.clear()
    assert tracker.find("10000") is None
    assert tracker.first_text_at("10000") == 10_001.0


def test_tracker_moves_a_retried_request_to_the_end() -> None:
    newer = [(str(number), "x") for number in range(9_999)]
    tracker, generations = track(("retried", "x"), ("other", "x"), ("retried", "y"), *newer)
    assert tracker.first_text_at("other") is None
    assert tracker.first_text_at("retried") == 3.0
    assert tracker.find("retried") is cast("ActiveGeneration", generations[2])

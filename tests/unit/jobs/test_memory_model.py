"""The store in memory against a model too plain to be wrong, in random schedules."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import jobs.memory
from jobs import Job, JobStatus, MemoryJobStore
from jobs.memory import StoreFull

RETENTION_S = 100.0


class MemoryStoreModel(RuleBasedStateMachine):
    """Job numbers stand for ids; the model is three lists and a dict of first results."""

    waits = Bundle("waits")
    receives = Bundle("receives")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.queue: list[str] = []
        self.running: list[str] = []
        self.ended: dict[str, tuple[Any, float]] = {}
        self.forgotten: set[str] = set()
        self.results: dict[str, Any] = {}
        self.receivers: list[asyncio.Task[Job]] = []
        self.clock = mock.patch.object(jobs.memory, "time", self)
        self.clock.start()

    def monotonic(self) -> float:
        return self.now

    @initialize(max_jobs=st.integers(1, 6))
    def build(self, max_jobs: int) -> None:
        self.max_jobs = max_jobs
        self.store = MemoryJobStore(max_jobs, RETENTION_S)

    def turns(self) -> None:
        """Let everything run that can."""

        async def some() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    def settle(self) -> None:
        """Let the receivers in line take what is queued, the first in line the first job."""
        self.turns()
        while self.receivers and self.queue:
            task = self.receivers.pop(0)
            assert task.result().id == self.queue[0]
            self.running.append(self.queue.pop(0))
        assert not any(task.done() for task in self.receivers)

    def expire(self) -> None:
        for job_id, (_, ended_at) in list(self.ended.items()):
            if ended_at < self.now - RETENTION_S:
                self.forget(job_id)

    def forget(self, job_id: str) -> None:
        del self.ended[job_id]
        self.forgotten.add(job_id)

    @rule(value=st.integers(), target=waits)
    def enqueue(self, value: int) -> Any:
        self.expire()
        kept = len(self.queue) + len(self.running) + len(self.ended)
        if kept == self.max_jobs:
            if not self.ended:
                try:
                    self.loop.run_until_complete(self.store.enqueue(value))
                except StoreFull:
                    return multiple()
                raise AssertionError("a full store took a job")
            self.forget(next(iter(self.ended)))
        job = self.loop.run_until_complete(self.store.enqueue(value))
        assert (job.input, job.status) == (value, JobStatus.IN_QUEUE)
        self.queue.append(job.id)
        # Somebody waits for each job from its start to its end, however that is interleaved.
        waiter = self.loop.create_task(self.store.wait(job.id, 3600))
        self.settle()
        return job.id, waiter

    @rule(target=receives)
    def receive(self) -> asyncio.Task[Job]:
        task = self.loop.create_task(self.store.receive())
        self.receivers.append(task)
        self.settle()
        return task

    @rule(task=consumes(receives))
    def cancel_receiver(self, task: asyncio.Task[Job]) -> None:
        if task in self.receivers:
            self.receivers.remove(task)
            task.cancel()
            self.settle()
            assert task.cancelled()

    @rule(value=st.integers())
    @precondition(lambda self: len(self.receivers) > 1)
    def cancel_a_receiver_just_as_a_job_comes(self, value: int) -> None:
        self.expire()
        if len(self.queue) + len(self.running) + len(self.ended) == self.max_jobs:
            return
        job = self.loop.run_until_complete(self.store.enqueue(value))
        self.queue.append(job.id)
        task = self.receivers.pop(0)
        task.cancel()
        self.turns()
        if not task.cancelled():
            self.receivers.insert(0, task)
        self.settle()

    @rule(data=st.data(), output=st.integers(), fails=st.booleans())
    @precondition(lambda self: self.running)
    def finish(self, data: st.DataObject, output: int, fails: bool) -> None:
        job_id = data.draw(st.sampled_from(self.running))
        outcome: Any = {"error": str(output)} if fails else {"output": output}
        job = self.loop.run_until_complete(self.store.finish(job_id, **outcome))
        assert job.status == (JobStatus.FAILED if fails else JobStatus.COMPLETED)
        self.running.remove(job_id)
        self.ended[job_id] = (outcome, self.now)
        self.results[job_id] = outcome

    @rule(data=st.data(), output=st.integers())
    @precondition(lambda self: self.ended)
    def finish_again(self, data: st.DataObject, output: int) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.ended)))
        job = self.loop.run_until_complete(self.store.finish(job_id, output=output))
        self.check_result(job)

    @rule(waiting=consumes(waits))
    def look_at_a_waiter(self, waiting: tuple[str, asyncio.Task[Job]]) -> None:
        job_id, waiter = waiting
        self.turns()
        if job_id in self.results:
            self.check_result(waiter.result())
        else:
            assert not waiter.done()
            waiter.cancel()
            self.turns()

    @rule(seconds=st.sampled_from([1.0, 60.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def check_result(self, job: Job) -> None:
        expected = self.results[job.id]
        assert {"output": None, "error": None} | expected == {
            "output": job.output,
            "error": job.error,
        }

    @invariant()
    def every_job_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "store"):
            return
        self.expire()

        async def look(job_id: str) -> Job | None:
            return await self.store.get(job_id)

        places = [(self.queue, JobStatus.IN_QUEUE), (self.running, JobStatus.IN_PROGRESS)]
        for ids, status in places:
            for job_id in ids:
                job = self.loop.run_until_complete(look(job_id))
                assert job is not None
                assert job.status == status
        for job_id in self.ended:
            job = self.loop.run_until_complete(look(job_id))
            assert job is not None
            self.check_result(job)
        for job_id in self.forgotten:
            assert self.loop.run_until_complete(look(job_id)) is None
        kept = len(self.queue) + len(self.running) + len(self.ended)
        assert sum(self.store.counts().values()) == kept

    def teardown(self) -> None:
        self.clock.stop()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turns()
        self.loop.close()


MemoryStoreModel.TestCase.settings = settings(stateful_step_count=40)
test_store_agrees_with_its_model = MemoryStoreModel.TestCase

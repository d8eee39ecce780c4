"""Random schedules, compared with a simple model of the admission."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from engine.admission import Admission
from engine.errors import EngineClosed, QueueFull
from engine.request import Priority
from tests.waiting import run_ready_tasks

MAX_QUEUE = 4

ENQUEUE = st.tuples(st.just("enqueue"), st.sampled_from(Priority))
OTHER = st.tuples(
    st.sampled_from(["cancel", "release", "resize", "fail"]), st.integers(min_value=0, max_value=7)
)
STEPS = st.lists(st.one_of(ENQUEUE, ENQUEUE, OTHER), max_size=40)


@dataclass
class World:
    """The real admission and one task for each request."""

    admission: Admission
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    priorities: dict[int, Priority] = field(default_factory=dict)
    holding: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    async def visit(self, number: int) -> None:
        try:
            await self.admission.acquire(self.priorities[number])
        except (QueueFull, EngineClosed):
            self.refused.append(number)
        else:
            self.holding.append(number)

    def step(self, step: tuple[str, int]) -> None:
        match step:
            case ("enqueue", priority):
                number = len(self.tasks)
                self.priorities[number] = Priority(priority)
                self.tasks[number] = asyncio.create_task(self.visit(number))
            case ("cancel", which):
                if pending := [task for task in self.tasks.values() if not task.done()]:
                    pending[which % len(pending)].cancel()
            case ("release", which):
                if self.holding:
                    del self.holding[which % len(self.holding)]
                    self.admission.release()
            case ("resize", slots):
                self.admission.resize(slots % 4 + 1)
            case ("fail", _):
                self.admission.fail_waiting(EngineClosed("closed"))

    async def settle(self) -> None:
        await run_ready_tasks(6)

    @property
    def waiting(self) -> list[int]:
        return [number for number, task in self.tasks.items() if not task.done()]


@dataclass
class Model:
    """The expected state of the admission: slots in use, waiting requests and refused ones."""

    slots: int = 1
    held: set[int] = field(default_factory=set)
    line: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def step(self, step: tuple[str, int], newcomer: int, world: World) -> None:
        match step:
            case ("enqueue", priority):
                self.enqueue(Priority(priority), newcomer, world)
            case ("cancel", which) if self.line:
                self.line.remove(sorted(self.line)[which % len(self.line)])
            case ("release", _):
                self.held &= set(world.holding)
            case ("resize", count):
                self.slots = count % 4 + 1
            case ("fail", _):
                self.refused += sorted(self.line)
                self.line.clear()
        while self.line and len(self.held) < self.slots:
            first = min(self.line, key=lambda number: (world.priorities[number], number))
            self.line.remove(first)
            self.held.add(first)

    def enqueue(self, priority: Priority, newcomer: int, world: World) -> None:
        waiting = [world.priorities[each] for each in self.line]
        if len(self.held) < self.slots and not self.line:
            self.held.add(newcomer)
        elif priority is Priority.INTERACTIVE and waiting.count(Priority.INTERACTIVE) >= MAX_QUEUE:
            self.refused.append(newcomer)
        else:
            self.line.append(newcomer)


@given(steps=STEPS)
def test_single_steps_agree_with_the_model(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        world, model = World(Admission(1, MAX_QUEUE)), Model()
        for step in steps:
            newcomer = len(world.tasks)
            before = list(model.line)
            world.step(step)
            await world.settle()
            model.step(step, newcomer, world)
            assert set(world.holding) == model.held, (step, before)
            assert sorted(world.waiting) == sorted(model.line)
            assert sorted(world.refused) == sorted(model.refused)
            counts = (world.admission.running, world.admission.waiting)
            assert counts == (len(model.held), len(model.line))
        for task in world.tasks.values():
            task.cancel()
        await world.settle()

    asyncio.run(play())


@given(bursts=st.lists(STEPS, max_size=8))
def test_any_number_of_steps_in_one_turn_loses_no_slot_and_no_waiter(
    bursts: list[list[tuple[str, int]]],
) -> None:
    async def play() -> None:
        world = World(Admission(1, MAX_QUEUE))
        for burst in bursts:
            for step in burst:
                world.step(step)
            await world.settle()
            admission = world.admission
            assert admission.running == len(world.holding)
            assert admission.waiting == len(world.waiting)
            interactive = [each for each in world.waiting if not world.priorities[each]]
            assert len(interactive) <= MAX_QUEUE
            assert not (admission.waiting and admission.running < admission.slots)
            assert admission.has_free_slot() == (admission.running < admission.slots)
        for task in world.tasks.values():
            task.cancel()
        await world.settle()
        assert world.admission.waiting == 0

    asyncio.run(play())

"""Random schedules against a model that is too simple to be wrong."""

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

ARRIVE = st.tuples(st.just("arrive"), st.sampled_from(Priority))
OTHER = st.tuples(
    st.sampled_from(["cancel", "release", "resize", "fail"]), st.integers(min_value=0, max_value=7)
)
STEPS = st.lists(st.one_of(ARRIVE, ARRIVE, OTHER), max_size=40)


@dataclass
class World:
    """The real door, and everyone who came to it."""

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
            case ("arrive", priority):
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


@given(steps=STEPS)
def test_one_step_at_a_time_does_what_the_model_does(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        world = World(Admission(1, MAX_QUEUE))
        slots, held, line, refused = 1, set[int](), list[int](), list[int]()
        for step in steps:
            newcomer = len(world.tasks)
            before = list(line)
            world.step(step)
            await world.settle()
            match step:
                case ("arrive", _) if len(held) < slots and not line:
                    held.add(newcomer)
                case ("arrive", Priority.INTERACTIVE) if (
                    sum(world.priorities[each] is Priority.INTERACTIVE for each in line)
                    >= MAX_QUEUE
                ):
                    refused.append(newcomer)
                case ("arrive", _):
                    line.append(newcomer)
                case ("cancel", which) if line:
                    line.remove(sorted(line)[which % len(line)])
                case ("release", _):
                    held &= set(world.holding)
                case ("resize", count):
                    slots = count % 4 + 1
                case ("fail", _):
                    refused += sorted(line)
                    line.clear()
            while line and len(held) < slots:
                first = min(line, key=lambda number: (world.priorities[number], number))
                line.remove(first)
                held.add(first)
            assert set(world.holding) == held, (step, before)
            assert sorted(world.waiting) == sorted(line)
            assert sorted(world.refused) == sorted(refused)
            assert (world.admission.running, world.admission.waiting) == (len(held), len(line))
        for task in world.tasks.values():
            task.cancel()
        await world.settle()

    asyncio.run(play())


@given(bursts=st.lists(STEPS, max_size=8))
def test_any_number_of_steps_in_one_turn_loses_no_slot_and_forgets_nobody(
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

"""When a worker runs an interrupted job again."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Priority
from handler.job.attempts import MAX_CRASHES, Attempts
from handler.job.job_result import Interruption
from tests.virtual_time import VirtualClock


class ReadyEngine:
    """An engine that is ready, whatever the server behind it does."""

    def __init__(self) -> None:
        self.reserved: list[bool] = []

    async def ready(self) -> None:
        """Return at once."""

    async def reserve(self, priority: Priority, *, exclusive: bool) -> Any:
        self.reserved.append(exclusive)
        return "slot"


def attempts() -> tuple[Attempts, ReadyEngine]:
    engine: Any = ReadyEngine()
    return Attempts(engine), engine


async def test_job_without_an_engine_is_not_tried_in_a_loop(clock: VirtualClock) -> None:
    job, engine = attempts()
    for _ in range(10):
        assert job.record_interruption(Interruption.NO_ENGINE)
        assert await job.next_slot() is None
    assert clock.elapsed_s == pytest.approx(10)
    assert engine.reserved == []


async def test_last_attempt_after_crashes_has_the_engine_to_itself(clock: VirtualClock) -> None:
    job, engine = attempts()
    slots: list[Any] = []
    while job.record_interruption(Interruption.CRASH):
        slots.append(await job.next_slot())
    assert slots == [None] * (MAX_CRASHES - 2) + ["slot"]
    assert (engine.reserved, clock.elapsed_s) == ([True], 0)
    assert "3 crashes" in str(job.build_failure("why").error)

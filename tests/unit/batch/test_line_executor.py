"""LineExecutor: waiting for the engine, and slot reservations."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest

from batch.input.line import Line, parse_line
from batch.line_executor import LineExecutor, LineOutcome
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineCrashed, EngineReplaced, EngineRestarting
from handler.apis.core.api import CallContext
from handler.composition import Services
from handler.job.job_result import Interruption, JobResult
from tests.virtual_time import VirtualClock

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
BODY: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
RESTARTING = EngineRestarting("the engine is restarting", retry_after_s=1)
REPLACED = EngineReplaced("it was ended while the request was running beside another one")


class FakeEngine:
    """An engine that is always ready and records reservations."""

    state = EngineState.READY

    def __init__(self) -> None:
        self.reserved: list[tuple[Priority, bool]] = []
        self.held = 0

    async def ready(self) -> None:
        """Return immediately."""

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        self.reserved.append((priority, exclusive))
        self.held += 1
        return Slot(self._release)

    def _release(self) -> None:
        self.held -= 1


class FakeCalls:
    """Raises the errors one after the other, then answers."""

    def __init__(self, engine: FakeEngine, *errors: Exception) -> None:
        self._engine = engine
        self._errors = list(errors)
        self.attempts = 0
        self.held: list[int] = []

    def check(self, route: str, body: object) -> None:
        """Accept everything."""

    async def answer(self, route: str, body: object, context: CallContext) -> dict[str, Any]:
        self.attempts += 1
        self.held.append(self._engine.held)
        if self._errors:
            raise self._errors.pop(0)
        return BODY


class FakeJobs:
    """Returns the same result for each job."""

    def __init__(self, result: JobResult) -> None:
        self._result = result

    async def run_encoded(self, job: object, slot: Slot | None) -> JobResult:
        return self._result


def create_line(**fields: Any) -> Line:
    return parse_line(orjson.dumps(LINE | fields), 1)


def create_executor(
    *errors: Exception, priority: Priority | None = None
) -> tuple[LineExecutor, FakeCalls, FakeEngine]:
    engine = FakeEngine()
    calls = FakeCalls(engine, *errors)
    none = cast("Any", None)
    callss = Services(none, cast("Any", calls), none, none, none)
    return LineExecutor(callss, cast("AnyEngine", engine), priority), calls, engine


@pytest.mark.parametrize("error", [RESTARTING, REPLACED])
async def test_deferred_line_is_retried_after_a_pause(
    error: Exception, clock: VirtualClock
) -> None:
    """With another model loaded, the engine is ready: without a pause this would be a busy loop."""
    executor, calls, _ = create_executor(*[error] * 1_000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.2):
            await executor.answer(create_line())
    assert calls.attempts == 3


async def test_deferred_line_is_answered_later(clock: VirtualClock) -> None:
    executor, calls, _ = create_executor(RESTARTING, REPLACED)
    outcome = await executor.answer(create_line())
    assert (outcome.ok, outcome.tokens, calls.attempts) == (True, 2, 3)


@pytest.mark.parametrize("priority", [None, Priority.BATCH])
async def test_exclusive_line_reserves_the_engine_for_each_attempt(
    priority: Priority | None, clock: VirtualClock
) -> None:
    executor, calls, engine = create_executor(REPLACED, EngineCrashed("it died"), priority=priority)
    outcome = await executor.answer(create_line(), exclusive=True)
    assert (outcome.ok, outcome.crashed, outcome.retryable) == (False, True, True)
    assert engine.reserved == [(Priority.BATCH, True)] * 2
    assert (calls.held, engine.held) == ([1, 1], 0)


async def test_line_reserves_a_shared_slot_by_default() -> None:
    executor, calls, engine = create_executor(priority=Priority.BATCH)
    assert (await executor.answer(create_line())).ok
    assert (engine.reserved, calls.held, engine.held) == ([(Priority.BATCH, False)], [1], 0)


@pytest.mark.parametrize(("interruption", "crashed"), [(Interruption.CRASH, True), (None, False)])
async def test_outcome_of_a_job_reports_a_crash(
    interruption: Interruption | None, crashed: bool
) -> None:
    result = JobResult(error="no", retryable=True, interruption=interruption, reason="no")
    none = cast("Any", None)
    callss = Services(cast("Any", FakeJobs(result)), none, none, none, none)
    executor = LineExecutor(callss, cast("AnyEngine", FakeEngine()))
    line = parse_line(b'{"id": "a", "input": {"prompt": "x"}}', 1)
    outcome: LineOutcome = await executor.answer(line)
    assert (outcome.ok, outcome.retryable, outcome.crashed) == (False, True, crashed)

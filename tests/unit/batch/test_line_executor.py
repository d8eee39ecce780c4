"""How an answerer waits for the engine, and which slots it reserves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest

from batch.input.line import Line, parse_line
from batch.line_executor import LineExecutor, LineOutcome
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineCrashed, EngineReplaced, EngineRestarting
from handler.composition import Services
from handler.job_result import Interruption, JobResult

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
BODY: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 2}}
RESTARTING = EngineRestarting("the engine is restarting", retry_after_s=1)
REPLACED = EngineReplaced("it was ended while the request was running beside another one")


class FakeEngine:
    """An engine that another model keeps ready; it counts the slots that were reserved."""

    state = EngineState.READY

    def __init__(self) -> None:
        self.reserved: list[tuple[Priority, bool]] = []
        self.held = 0

    async def ready(self) -> None:
        """Return at once."""

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        self.reserved.append((priority, exclusive))
        self.held += 1
        return Slot(self._release)

    def _release(self) -> None:
        self.held -= 1


class FakeService:
    """Raises the errors one after the other, and answers after the last."""

    def __init__(self, engine: FakeEngine, *errors: Exception) -> None:
        self._engine = engine
        self._errors = list(errors)
        self.attempts = 0
        self.held: list[int] = []

    def check_call(self, route: str, body: object) -> None:
        """Accept everything."""

    async def answer_without_generation(
        self, route: str, body: object, slot: Slot | None
    ) -> dict[str, Any]:
        self.attempts += 1
        self.held.append(self._engine.held)
        if self._errors:
            raise self._errors.pop(0)
        return BODY


class FakeJobs:
    """Ends each job with the same result."""

    def __init__(self, result: JobResult) -> None:
        self._result = result

    async def run_encoded(self, job: object, slot: Slot | None) -> JobResult:
        return self._result


def line_of(**fields: Any) -> Line:
    return parse_line(orjson.dumps(LINE | fields), 1)


def answerer_of(
    *errors: Exception, priority: Priority | None = None
) -> tuple[LineExecutor, FakeService, FakeEngine]:
    engine = FakeEngine()
    service = FakeService(engine, *errors)
    doors = Services(cast("Any", None), cast("Any", service), cast("Any", None))
    return LineExecutor(doors, cast("AnyEngine", engine), priority), service, engine


@pytest.mark.parametrize("error", [RESTARTING, REPLACED])
async def test_line_that_has_to_wait_is_tried_again_after_a_pause(error: Exception) -> None:
    """Where another model is loaded, the engine is ready: without a pause this never stops."""
    answerer, service, _ = answerer_of(*[error] * 1_000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await answerer.answer(line_of())
    assert service.attempts == 1


async def test_line_that_has_to_wait_is_answered_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batch.line_executor._RETRY_DELAY_S", 0.0)
    answerer, service, _ = answerer_of(RESTARTING, REPLACED)
    outcome = await answerer.answer(line_of())
    assert (outcome.ok, outcome.tokens, service.attempts) == (True, 2, 3)


@pytest.mark.parametrize("priority", [None, Priority.BATCH])
async def test_line_alone_holds_one_slot_for_itself_at_each_try(
    monkeypatch: pytest.MonkeyPatch, priority: Priority | None
) -> None:
    monkeypatch.setattr("batch.line_executor._RETRY_DELAY_S", 0.0)
    answerer, service, engine = answerer_of(REPLACED, EngineCrashed("it died"), priority=priority)
    outcome = await answerer.answer(line_of(), exclusive=True)
    assert (outcome.ok, outcome.crashed, outcome.retryable) == (False, True, True)
    assert engine.reserved == [(Priority.BATCH, True)] * 2
    assert (service.held, engine.held) == ([1, 1], 0)


async def test_line_that_is_not_alone_runs_beside_others() -> None:
    answerer, service, engine = answerer_of(priority=Priority.BATCH)
    assert (await answerer.answer(line_of())).ok
    assert (engine.reserved, service.held, engine.held) == ([(Priority.BATCH, False)], [1], 0)


@pytest.mark.parametrize(("interruption", "crashed"), [(Interruption.CRASH, True), (None, False)])
async def test_job_tells_whether_the_engine_crashed_under_it(
    interruption: Interruption | None, crashed: bool
) -> None:
    result = JobResult(error="no", retryable=True, interruption=interruption, reason="no")
    doors = Services(cast("Any", FakeJobs(result)), cast("Any", None), cast("Any", None))
    answerer = LineExecutor(doors, cast("AnyEngine", FakeEngine()))
    line = parse_line(b'{"id": "a", "input": {"prompt": "x"}}', 1)
    outcome: LineOutcome = await answerer.answer(line)
    assert (outcome.ok, outcome.retryable, outcome.crashed) == (False, True, crashed)

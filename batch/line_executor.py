"""From a line to its answer, through the same services as requests and jobs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from batch.input.line import BadLine, Line
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineCrashed, EngineError, EngineReplaced, EngineRestarting
from handler.composition import Services
from handler.errors import HandlerError, InvalidRequest, error_info
from handler.job import Interruption
from handler.offload import check_body
from handler.openai.service import EMBEDDINGS, ENDPOINT_SPECS

logger = logging.getLogger(__name__)

# None is that of a job.
ROUTES = (*ENDPOINT_SPECS, EMBEDDINGS, None)
_COMPLETED, _FAILED = "COMPLETED", "FAILED"
_STREAMS = "stream must be false: a batch has nobody to stream to"
# Where other models are loaded, the engine is ready while the line's own model is restarted.
_RETRY_DELAY_S = 0.5


class EngineLost(Exception):
    """The engine is past helping, so no line can be answered any more; the message says why."""


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The result of a line: its line in the output or, if it failed, in the error file.

    `tokens` counts those of the answer. `retryable` means that another try may end better,
    `waits` that the line was not tried or was interrupted because of another request, and
    `crashed` that it was running when the engine crashed.
    """

    line: bytes
    ok: bool
    tokens: int = 0
    retryable: bool = False
    waits: bool = False
    crashed: bool = False


class LineExecutor:
    """Checks and answers lines; holds nothing between them.

    With a `priority` a line waits for a slot in that class before its time begins to count, for an
    engine that others use as well.
    """

    def __init__(
        self, doors: Services, engine: AnyEngine, priority: Priority | None = None
    ) -> None:
        self._doors = doors
        self._engine = engine
        self._priority = priority

    def check(self, line: Line) -> None:
        """Find all that can be wrong with a request before there is an engine. Raises BadLine."""
        if line.route not in ROUTES:
            raise BadLine(
                f"url must be one of {', '.join(filter(None, ROUTES))}, got {line.route!r}"
            )
        try:
            if line.route is None:
                self._doors.jobs.check({"input": line.body})
            else:
                self._doors.openai.check_call(line.route, line.body)
        except HandlerError as error:
            raise BadLine(error.message) from None
        if line.route is not None and line.body.get("stream"):
            raise BadLine(f"body.{_STREAMS}")

    async def answer(self, line: Line, *, alone: bool = False) -> LineOutcome:
        """Try a line once and return its result. Raises EngineLost.

        A line whose turn comes while the engine is being restarted waits for that: it is no try.
        With `alone` nothing else runs on the engine meanwhile, for a line that may crash it.
        """
        while True:
            slot = await self._reserve_alone() if alone else None
            try:
                outcome = await self._try(line, slot)
            finally:
                if slot is not None:
                    slot.release()
            if not outcome.waits:
                break
            with suppress(EngineError):
                await self._engine.ready()
            await asyncio.sleep(_RETRY_DELAY_S)
        if not outcome.ok and self._engine.state is EngineState.DEAD:
            raise EngineLost(str(self._engine.failure))
        return outcome

    async def _reserve_alone(self) -> Slot | None:
        """Wait until nothing else runs; None if the engine is dead, which the try then reports."""
        with suppress(EngineError):
            priority = Priority.BATCH if self._priority is None else self._priority
            return await self._engine.reserve(priority, exclusive=True)
        return None

    async def _try(self, line: Line, slot: Slot | None) -> LineOutcome:
        if line.route is None:
            return await self._run_job(line, slot)
        return await self._call(line, line.route, slot)

    async def _run_job(self, line: Line, slot: Slot | None) -> LineOutcome:
        result = await self._doors.jobs.run_encoded(
            {"id": line.custom_id, "input": line.body}, slot
        )
        told: dict[str, Any] = {"id": line.custom_id}
        if result.output is None:
            told |= {"status": _FAILED, "error": result.error, **_warnings(line)}
            waits = result.interruption is Interruption.NO_ENGINE and self._may_come_back
            return LineOutcome(
                orjson.dumps(told),
                ok=False,
                retryable=result.retryable,
                waits=waits,
                crashed=result.interruption is Interruption.CRASH,
            )
        output = orjson.Fragment(result.output)
        told |= {"status": _COMPLETED, "output": output, **_warnings(line)}
        return LineOutcome(orjson.dumps(told), ok=True)

    async def _call(self, line: Line, route: str, slot: Slot | None) -> LineOutcome:
        retryable, waits, crashed, tokens = False, False, False, 0
        try:
            body = await self._body(route, line.body, slot)
            status = 200
            tokens = body["usage"].get("completion_tokens", 0)
        except Exception as error:
            failure = error_info(error)
            replaced = isinstance(error, EngineReplaced | EngineRestarting)
            waits = replaced and self._may_come_back
            crashed = isinstance(error, EngineCrashed) and not replaced
            body, status, retryable = (
                failure.openai_error(),
                failure.mapping.status,
                failure.mapping.retryable,
            )
        request_id = os.urandom(16).hex()
        told = {
            "id": f"batch_req_{request_id}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
            **_warnings(line),
        }
        return LineOutcome(orjson.dumps(told), status == 200, tokens, retryable, waits, crashed)

    @property
    def _may_come_back(self) -> bool:
        return self._engine.state is not EngineState.DEAD

    async def _body(
        self, route: str, asked: Mapping[str, Any], slot: Slot | None
    ) -> dict[str, Any]:
        """Return the answer to a request; `slot` is a reserved slot, which the caller releases."""
        service, own_slot = self._doors.openai, None
        priority = Priority.INTERACTIVE if self._priority is None else self._priority
        if asked.get("stream"):
            raise InvalidRequest(_STREAMS, "stream")
        if self._priority is not None and slot is None:
            # A request that is refused needs no slot.
            await check_body(asked, partial(service.check_call, route, asked))
            slot = own_slot = await self._engine.reserve(priority)
        try:
            body = await service.answer_without_generation(route, asked, slot)
            if body is None:
                body = await service.complete(
                    await service.parse_call_async(route, asked, priority=priority), slot
                )
            return body
        finally:
            if own_slot is not None:
                own_slot.release()


def _warnings(line: Line) -> dict[str, Any]:
    """Return `warnings` about the keys of the line itself, for its answer."""
    for warning in line.warnings:
        logger.warning("line %s: %s", line.custom_id, warning)
    return {"warnings": list(line.warnings)} if line.warnings else {}

"""From a line to its answer, through the doors that everybody else uses."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from batch.line import BadLine, Line
from engine import AnyEngine, EngineState, Priority
from engine.errors import EngineError, EngineReplaced, EngineRestarting
from handler.assembly import Doors
from handler.errors import HandlerError, InvalidRequest, problem
from handler.job import Interruption
from handler.offload import checked
from handler.openai.service import EMBEDDINGS, SHAPES

logger = logging.getLogger(__name__)

# None is that of a job.
ROUTES = (*SHAPES, EMBEDDINGS, None)
_COMPLETED, _FAILED = "COMPLETED", "FAILED"
_STREAMS = "stream must be false: a batch has nobody to stream to"


class EngineLost(Exception):
    """The engine is past helping, so no line can be answered any more; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a line: its line in the output or, where it failed, in the error file.

    `tokens` are those of the answer; `retryable` says that another try may end better, and `waits`
    that it was not tried, or was interrupted because of another request.
    """

    line: bytes
    ok: bool
    tokens: int = 0
    retryable: bool = False
    waits: bool = False


class Answerer:
    """Checks and answers lines; holds nothing between them.

    With a `priority` a line waits for a slot in that class before its time begins to count, for an
    engine that others use as well.
    """

    def __init__(self, doors: Doors, engine: AnyEngine, priority: Priority | None = None) -> None:
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
                self._doors.openai.check(line.route, line.body)
        except HandlerError as error:
            raise BadLine(error.message) from None
        if line.route is not None and line.body.get("stream"):
            raise BadLine(f"body.{_STREAMS}")

    async def answer(self, line: Line) -> Outcome:
        """Return what became of a line, at its first try. Raises EngineLost.

        A line whose turn comes while the engine is being restarted waits for that: it is no try.
        """
        while True:
            outcome = await self._try(line)
            if not outcome.waits:
                break
            with suppress(EngineError):
                await self._engine.ready()
        if not outcome.ok and self._engine.state is EngineState.DEAD:
            raise EngineLost(str(self._engine.failure))
        return outcome

    async def _try(self, line: Line) -> Outcome:
        if line.route is None:
            return await self._run_job(line)
        return await self._call(line, line.route)

    async def _run_job(self, line: Line) -> Outcome:
        result = await self._doors.jobs.result({"id": line.custom_id, "input": line.body})
        told: dict[str, Any] = {"id": line.custom_id}
        if result.output is None:
            told |= {"status": _FAILED, "error": result.error, **_warnings(line)}
            waits = result.interruption is Interruption.NO_ENGINE and self._may_come_back
            body = orjson.dumps(told)
            return Outcome(body, ok=False, retryable=result.retryable, waits=waits)
        output = orjson.Fragment(result.output)
        told |= {"status": _COMPLETED, "output": output, **_warnings(line)}
        return Outcome(orjson.dumps(told), ok=True)

    async def _call(self, line: Line, route: str) -> Outcome:
        retryable, waits, tokens = False, False, 0
        try:
            body = await self._body(route, line.body)
            status = 200
            tokens = body["usage"].get("completion_tokens", 0)
        except Exception as error:
            failure = problem(error)
            waits = isinstance(error, EngineReplaced | EngineRestarting) and self._may_come_back
            body, status, retryable = (
                failure.openai_error(),
                failure.row.status,
                failure.row.retryable,
            )
        request_id = os.urandom(16).hex()
        told = {
            "id": f"batch_req_{request_id}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
            **_warnings(line),
        }
        return Outcome(orjson.dumps(told), status == 200, tokens, retryable, waits)

    @property
    def _may_come_back(self) -> bool:
        return self._engine.state is not EngineState.DEAD

    async def _body(self, route: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        service, priority, slot = self._doors.openai, Priority.INTERACTIVE, None
        if asked.get("stream"):
            raise InvalidRequest(_STREAMS, "stream")
        if self._priority is not None:
            # What cannot be answered needs no slot.
            await checked(asked, partial(service.check, route, asked))
            priority = self._priority
            slot = await self._engine.reserve(priority)
        try:
            body = await service.plain(route, asked, slot)
            if body is None:
                body = await service.whole(
                    await service.read(route, asked, priority=priority), slot
                )
            return body
        finally:
            if slot is not None:
                slot.release()


def _warnings(line: Line) -> dict[str, Any]:
    """Return `warnings` about the keys of the line itself, for its answer."""
    for warning in line.warnings:
        logger.warning("line %s: %s", line.custom_id, warning)
    return {"warnings": list(line.warnings)} if line.warnings else {}

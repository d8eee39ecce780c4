"""Answers one line of a batch with the same services as HTTP requests and jobs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson

from batch.input.line import BadLine, Line
from batch.output.token_totals import find_usage
from common.json_object import JsonObject
from engine import AnyEngine, EngineState, Priority, Slot
from engine.errors import EngineCrashed, EngineError, EngineReplaced, EngineRestarting
from handler.apis.calls import CALL_ROUTES, find_format, read_usage
from handler.apis.core.api import CallContext
from handler.composition import Services
from handler.errors import HandlerError, InvalidRequest, error_info
from handler.generation.offload import check_body
from handler.job.job_result import Interruption

logger = logging.getLogger(__name__)

# Jobs have the route None.
ROUTES = (*CALL_ROUTES, None)
_COMPLETED, _FAILED = "COMPLETED", "FAILED"
_STREAM_ERROR = "stream must be false: a batch has nobody to stream to"
# With several models loaded, `ready` can return while the line's own model is restarting. Without
# a pause the line would be retried in a busy loop.
_RETRY_DELAY_S = 0.5


class ExecutorLost(Exception):
    """Further lines cannot be answered now, and an attempt has no outcome; the message says why."""


class EngineLost(ExecutorLost):
    """The engine is dead, so that further lines cannot be answered; the message has the cause."""


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The result of a line: its line in the output or, if it failed, in the error file.

    `tokens` is the length of the answer. `retryable` means that another attempt may succeed,
    `is_deferred` that the attempt does not count, because it did not start or was interrupted by
    another request, and `crashed` that the line was running when the engine crashed.
    """

    line: bytes
    ok: bool
    tokens: int = 0
    retryable: bool = False
    is_deferred: bool = False
    crashed: bool = False


class Executor(Protocol):
    """Answers the lines of a batch."""

    def check(self, line: Line) -> None:
        """Check everything about a request that does not need a model. Raises BadLine."""

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        """Make one attempt at a line and return its outcome. Raises ExecutorLost.

        With `exclusive`, for a line that may crash an engine, nothing else runs at the same time.
        """


class LineExecutor:
    """Checks and answers lines. It keeps no state between lines.

    With a `priority`, for an engine that serves other requests too, a line first waits for a slot
    of that class. Its time limit starts when it has the slot.
    """

    def __init__(
        self, services: Services, engine: AnyEngine, priority: Priority | None = None
    ) -> None:
        self._services = services
        self._engine = engine
        self._priority = priority

    def check(self, line: Line) -> None:
        """Check everything about a request that does not need a model. Raises BadLine."""
        if line.route not in ROUTES:
            raise BadLine(
                f"url must be one of {', '.join(filter(None, ROUTES))}, got {line.route!r}"
            )
        try:
            if line.route is None:
                self._services.jobs.check({"input": line.body})
            else:
                self._services.calls.check(line.route, line.body)
        except HandlerError as error:
            raise BadLine(error.message) from None
        if line.route is not None and line.body.get("stream"):
            raise BadLine(f"body.{_STREAM_ERROR}")

    async def answer(self, line: Line, *, exclusive: bool = False) -> LineOutcome:
        """Make one attempt at a line and return its outcome. Raises EngineLost.

        While the engine is restarting, the line waits, which does not count as an attempt. With
        `exclusive`, for a line that may crash the engine, nothing else runs at the same time.
        """
        while True:
            slot = await self._reserve_exclusive() if exclusive else None
            try:
                outcome = await self._attempt(line, slot)
            finally:
                if slot is not None:
                    slot.release()
            if not outcome.is_deferred:
                break
            with suppress(EngineError):
                await self._engine.ready()
            await asyncio.sleep(_RETRY_DELAY_S)
        if not outcome.ok and self._engine.state is EngineState.DEAD:
            raise EngineLost(str(self._engine.failure))
        return outcome

    async def _reserve_exclusive(self) -> Slot | None:
        """Reserve the whole engine; None if it is dead, which the attempt then reports."""
        with suppress(EngineError):
            priority = Priority.BATCH if self._priority is None else self._priority
            return await self._engine.reserve(priority, exclusive=True)
        return None

    async def _attempt(self, line: Line, slot: Slot | None) -> LineOutcome:
        if line.route is None:
            return await self._run_job(line, slot)
        return await self._call(line, line.route, slot)

    async def _run_job(self, line: Line, slot: Slot | None) -> LineOutcome:
        result = await self._services.jobs.run_encoded(
            {"id": line.custom_id, "input": line.body}, slot
        )
        if result.output is None:
            failure = {"id": line.custom_id, "status": _FAILED, "error": result.error}
            is_deferred = result.interruption is Interruption.NO_ENGINE and self._is_engine_alive
            return LineOutcome(
                orjson.dumps(failure | _warnings(line)),
                ok=False,
                retryable=result.retryable,
                is_deferred=is_deferred,
                crashed=result.interruption is Interruption.CRASH,
            )
        output = orjson.Fragment(result.output)
        success = {"id": line.custom_id, "status": _COMPLETED, "output": output}
        usage = find_usage(orjson.loads(result.output))
        tokens = 0 if usage is None else usage.completion_tokens
        return LineOutcome(orjson.dumps(success | _warnings(line)), ok=True, tokens=tokens)

    async def _call(self, line: Line, route: str, slot: Slot | None) -> LineOutcome:
        retryable, is_deferred, crashed, tokens = False, False, False, 0
        body: JsonObject
        try:
            body = await self._answer_call(route, line.body, slot)
            status = 200
            tokens = read_usage(body).completion_tokens
        except Exception as error:
            failure = error_info(error)
            replaced = isinstance(error, EngineReplaced | EngineRestarting)
            is_deferred = replaced and self._is_engine_alive
            crashed = isinstance(error, EngineCrashed) and not replaced
            body, status, retryable = (
                find_format(route).encode_error(failure),
                failure.mapping.status,
                failure.mapping.retryable,
            )
        encoded = encode_call_answer(line, body, status)
        return LineOutcome(encoded, status == 200, tokens, retryable, is_deferred, crashed)

    @property
    def _is_engine_alive(self) -> bool:
        return self._engine.state is not EngineState.DEAD

    async def _answer_call(
        self, route: str, body: Mapping[str, Any], slot: Slot | None
    ) -> JsonObject:
        """Return the response body to a request. The caller releases `slot`, if it has one."""
        calls, own_slot = self._services.calls, None
        priority = Priority.BATCH if self._priority is None else self._priority
        if body.get("stream"):
            raise InvalidRequest(_STREAM_ERROR, "stream")
        if self._priority is not None and slot is None:
            # Reject an invalid request before it waits for a slot.
            await check_body(body, partial(calls.check, route, body))
            slot = own_slot = await self._engine.reserve(priority)
        try:
            return await calls.answer(route, body, CallContext(slot=slot, priority=priority))
        finally:
            if own_slot is not None:
                own_slot.release()


def encode_call_answer(
    line: Line, body: JsonObject, status: int, request_id: str | None = None
) -> bytes:
    """Return the answer to an OpenAI request as a line of the output or the error file.

    Without `request_id`, the request gets a random one.
    """
    request_id = request_id or os.urandom(16).hex()
    return orjson.dumps(
        {
            "id": f"batch_req_{request_id}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
            **_warnings(line),
        }
    )


def _warnings(line: Line) -> dict[str, Any]:
    """Log the warnings about the line's own keys and return them as a field of its answer."""
    for warning in line.warnings:
        logger.warning("line %s: %s", line.custom_id, warning)
    return {"warnings": list(line.warnings)} if line.warnings else {}

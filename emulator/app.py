"""The server as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.disconnect import ClientDisconnected
from emulator.job_routes import JobRoutes
from emulator.local_worker import LocalWorker
from emulator.openai_routes import OpenAIRoutes
from emulator.responses import JSON, error_response, on_error, on_http_error
from emulator.settings import EmulatorSettings
from engine import Engine, EngineState
from engine.errors import EngineError
from handler.assembly import build_checking, open_doors
from handler.errors import HandlerError, Problem, Row
from jobs import MemoryJobStore
from jobs.memory import StoreFull


def build_app(settings: EmulatorSettings, engine: Engine) -> Starlette:
    """Return the application around an engine, which it starts and closes with itself.

    Raises:
        SettingError: what a setting names cannot be used.
    """
    doors = open_doors(settings, engine, build_checking(settings))
    store = MemoryJobStore()
    worker = LocalWorker(store, doors.jobs, engine)
    max_body_bytes = int(settings.max_body_mb * 1e6)
    openai = OpenAIRoutes(doors.openai, max_body_bytes, settings.stream_interval_ms / 1000)
    jobs = JobRoutes(store, settings.endpoint_id, max_body_bytes)

    async def health(request: Request) -> Response:
        return JSON(_health(engine, settings.served_model), _health_status(engine))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engine.spawn()
        worker.start()
        try:
            yield
        finally:
            await worker.close()
            await engine.close()

    return Starlette(
        routes=[Route("/health", health, methods=["GET"]), *openai.routes(), *jobs.routes()],
        lifespan=lifespan,
        exception_handlers={
            HTTPException: on_http_error,
            HandlerError: on_error,
            EngineError: on_error,
            StoreFull: _on_full,
            ClientDisconnected: _on_gone,
            # Starlette's own, of a client that left in the middle of its body.
            ClientDisconnect: _on_gone,
            Exception: on_error,
        },
    )


def _health(engine: Engine, model: str) -> dict[str, object]:
    failure = engine.failure
    return {
        "status": {"ready": "ok", "loading": "loading", "dead": "unavailable"}[engine.state],
        "model": model,
        "engine": {
            "state": engine.state.value,
            "slots": engine.slots,
            "running": engine.running,
            "waiting": engine.waiting,
            "restarts": engine.restarts,
            "failure": failure.message if failure else None,
        },
    }


def _health_status(engine: Engine) -> int:
    return 503 if engine.state is EngineState.DEAD else 200


async def _on_full(request: Request, error: Exception) -> Response:
    return error_response(Problem(str(error), Row(429, "rate_limit_error", retryable=True)))


async def _on_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; 499 is what proxies log for a client that left.
    return Response(status_code=499)

"""`/health`: the state of the server, for process supervisors and load balancers (R42)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.http.responses import JSON
from emulator.http.shutdown_state import ShutdownState
from engine import AnyEngine, Engine, EngineState
from jobs import SqliteJournal

_STATUS_OF_ENGINE = {
    "ready": "ok",
    "loading": "loading",
    "restarting": "restarting",
    "dead": "unavailable",
}


class Health:
    """Reports the state of each model's engine, of the job database, and of a shutdown.

    The response is 503 if the engine is dead, if the server shuts down, and while requests get 503
    because a restart of the engine takes long. It is 200 if jobs cannot be written to disk, because
    the OpenAI routes do not need the disk, and if only some of several models are dead.
    """

    def __init__(
        self,
        engine: AnyEngine,
        models: Mapping[str, Engine],
        journal: SqliteJournal | None,
        shutdown: ShutdownState,
        list_set_aside: Callable[[], list[str]] = list,
    ) -> None:
        self._engine = engine
        self._models = models
        self._journal = journal
        self._shutdown = shutdown
        # Returns the ids of files and batches whose records are damaged.
        self._list_set_aside = list_set_aside

    def route(self) -> Route:
        """Return the route to mount."""
        return Route("/health", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        engine = self._engine
        trouble = self._journal.write_error if self._journal is not None else None
        status = _STATUS_OF_ENGINE[engine.state]
        if self._shutdown.draining.is_set():
            status = "draining"
        elif status not in ("restarting", "unavailable") and trouble is not None:
            # Also while the model loads: jobs are accepted then, if they can be written to disk.
            status = "degraded"
        elif status == "ok" and self._has_failed_instance():
            status = "degraded"
        body = {
            "status": status,
            "model": next(iter(self._models)),
            "engine": _engine_as_json(engine),
            "models": [
                {
                    "id": name,
                    **_engine_as_json(each),
                    "instances": [asdict(instance) for instance in each.instances],
                }
                for name, each in self._models.items()
            ],
            "jobs": {
                "database": self._database(trouble),
                "trouble": trouble,
                "set_aside": [] if self._journal is None else self._journal.set_aside,
            },
            "batches": {"set_aside": self._list_set_aside()},
        }
        refuses = engine.state is EngineState.DEAD or engine.rejects_interactive
        return JSON(body, 503 if refuses or self._shutdown.draining.is_set() else 200)

    def _has_failed_instance(self) -> bool:
        return any(
            instance.state in (EngineState.DEAD, EngineState.RESTARTING)
            for engine in self._models.values()
            for instance in engine.instances
        )

    def _database(self, trouble: str | None) -> str:
        if self._journal is None:
            return "memory"
        return "ok" if trouble is None else "unavailable"


def _engine_as_json(engine: AnyEngine) -> dict[str, Any]:
    failure = engine.failure
    return {
        "state": engine.state.value,
        "slots": engine.slots,
        "running": engine.running,
        "waiting": engine.waiting,
        "restarts": engine.restarts,
        "failure": failure.message if failure else None,
        "trouble": engine.trouble,
    }

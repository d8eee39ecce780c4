"""`/health`: how the server itself is, for whoever starts it or sends clients to it (R42)."""

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

_WORDS = {
    "ready": "ok",
    "loading": "loading",
    "restarting": "restarting",
    "dead": "unavailable",
}


class Health:
    """Tells of each model's engine, of the disk that jobs are kept on, and of the server's end.

    503 when nothing will be answered any more, and while requests get 503 because a restart of the
    engine takes long. A disk that takes no jobs is reported and is no 503: the OpenAI routes need
    none; nor is a model that is dead beside one that is not.
    """

    def __init__(
        self,
        engine: AnyEngine,
        models: Mapping[str, Engine],
        journal: SqliteJournal | None,
        shutdown: ShutdownState,
        set_aside: Callable[[], list[str]] = list,
    ) -> None:
        self._engine = engine
        self._models = models
        self._journal = journal
        self._shutdown = shutdown
        # Ids of files and batches whose records are damaged.
        self._set_aside = set_aside

    def route(self) -> Route:
        """Return the route to mount."""
        return Route("/health", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        engine = self._engine
        trouble = self._journal.write_error if self._journal is not None else None
        word = _WORDS[engine.state]
        if self._shutdown.draining.is_set():
            word = "draining"
        elif word not in ("restarting", "unavailable") and trouble is not None:
            # While the model loads as well: jobs are taken then, where the disk does.
            word = "degraded"
        elif word == "ok" and self._part_is_missing():
            word = "degraded"
        body = {
            "status": word,
            "model": next(iter(self._models)),
            "engine": _told(engine),
            "models": [
                {
                    "id": name,
                    **_told(each),
                    "instances": [asdict(instance) for instance in each.instances],
                }
                for name, each in self._models.items()
            ],
            "jobs": {
                "database": self._database(trouble),
                "trouble": trouble,
                "set_aside": [] if self._journal is None else self._journal.set_aside,
            },
            "batches": {"set_aside": self._set_aside()},
        }
        refuses = engine.state is EngineState.DEAD or engine.rejects_interactive
        return JSON(body, 503 if refuses or self._shutdown.draining.is_set() else 200)

    def _part_is_missing(self) -> bool:
        return any(
            instance.state in (EngineState.DEAD, EngineState.RESTARTING)
            for engine in self._models.values()
            for instance in engine.instances
        )

    def _database(self, trouble: str | None) -> str:
        if self._journal is None:
            return "memory"
        return "ok" if trouble is None else "unavailable"


def _told(engine: AnyEngine) -> dict[str, Any]:
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

"""`/health`: the state of the server, for process supervisors and load balancers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from emulator.autoscaling.handler_state import HandlerState
from emulator.http.responses import JSON
from emulator.http.route_facts import DETAILS_HIDDEN, ApiRoute, OperationName, public_facts
from emulator.http.shutdown_state import ShutdownState
from engine import AnyEngine, Engine, EngineState
from jobs import SqliteJournal

if TYPE_CHECKING:
    from emulator.batches.service import BatchService

# Sent to everyone: names and numbers of this program, and no text of a handler, of a library
# or of the operator.
_OPEN_ENGINE_FIELDS = ("state", "slots", "running", "waiting", "restarts")

_STATUS_OF_ENGINE = {
    "ready": "ok",
    "loading": "loading",
    "restarting": "restarting",
    "dead": "unavailable",
    "unloaded": "ok",
}


class EngineParts(Protocol):
    """The engines and batches of a server that has a model."""

    @property
    def engine(self) -> AnyEngine:
        """Return the default model's engine."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Return the engines by model name."""

    @property
    def batches(self) -> BatchService:
        """Return the service that has the batches."""


class Health:
    """Reports the state of each model's engine, of the user's handlers, and of the job database.

    The response is 503 if the engine is dead, if the server shuts down, and while requests get 503
    because a restart of the engine takes long. It is 200 if jobs cannot be written to disk, because
    the OpenAI routes do not need the disk, if only some of several models are dead, and if the
    user's handlers do not start, because jobs are answered with the reason.

    Without a key, if the server requires one, and to a foreign page, the response has states and
    counts only: a reason can quote what a handler printed, and paths name users and customers.
    """

    def __init__(
        self,
        engine_components: EngineParts | None,
        handlers: Sequence[HandlerState],
        journal: SqliteJournal | None,
        shutdown: ShutdownState,
    ) -> None:
        self._engine_components = engine_components
        self._handlers = handlers
        self._journal = journal
        self._shutdown = shutdown

    def route(self) -> ApiRoute:
        """Return the route to mount."""
        facts = public_facts(OperationName.HEALTH)
        return ApiRoute("/health", self._answer, methods=["GET"], facts=facts)

    async def _answer(self, request: Request) -> Response:
        trouble = self._journal.write_error if self._journal is not None else None
        engines = self._engine_components
        status, refuses = "ok", False
        body: dict[str, Any] = {}
        if engines is not None:
            engine = engines.engine
            status = _STATUS_OF_ENGINE[engine.state]
            refuses = engine.state is EngineState.DEAD or engine.rejects_interactive
            body = _describe_engines(engines)
        handlers = [handler.to_wire() for handler in self._handlers]
        if handlers:
            body |= {"handler": handlers[0], "handlers": handlers}
        if self._shutdown.draining.is_set():
            status, refuses = "draining", True
        elif status not in ("restarting", "unavailable") and trouble is not None:
            # Also while the model loads: jobs are accepted then, if they can be written to disk.
            status = "degraded"
        elif status == "ok" and (
            (engines is not None and _has_failed_instance(engines))
            or any(handler["failure"] is not None for handler in handlers)
        ):
            status = "degraded"
        elif status == "ok" and any(handler["state"] == "starting" for handler in handlers):
            status = "loading"
        jobs = {
            "database": self._database(trouble),
            "trouble": trouble,
            "set_aside": [] if self._journal is None else self._journal.set_aside,
        }
        batches = [] if engines is None else engines.batches.damaged_ids()
        body = {"status": status, **body, "jobs": jobs, "batches": {"set_aside": batches}}
        if request.scope.get(DETAILS_HIDDEN, False):
            body = _hide_details(body)
        return JSON(body, 503 if refuses else 200)

    def _database(self, trouble: str | None) -> str:
        if self._journal is None:
            return "memory"
        return "ok" if trouble is None else "unavailable"


def _hide_details(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states and counts of a response; other settings are left out."""
    public: dict[str, Any] = {"status": body["status"]}
    if "engine" in body:
        public["engine"] = {name: body["engine"][name] for name in _OPEN_ENGINE_FIELDS}
    if "handler" in body:
        public["handler"] = {"state": body["handler"]["state"]}
        public["handlers"] = [{"state": handler["state"]} for handler in body["handlers"]]
    return {**public, "jobs": {"database": body["jobs"]["database"]}}


def _describe_engines(engines: EngineParts) -> dict[str, Any]:
    return {
        "model": next(iter(engines.engines)),
        "engine": _engine_as_json(engines.engine),
        "models": [
            {
                "id": name,
                **_engine_as_json(each),
                "instances": [asdict(instance) for instance in each.instances],
            }
            for name, each in engines.engines.items()
        ],
    }


def _has_failed_instance(engines: EngineParts) -> bool:
    return any(
        instance.state in (EngineState.DEAD, EngineState.RESTARTING)
        for engine in engines.engines.values()
        for instance in engine.instances
    )


def _engine_as_json(engine: AnyEngine) -> dict[str, Any]:
    failure, capabilities = engine.failure, engine.capabilities
    return {
        "state": engine.state.value,
        "slots": engine.slots,
        "running": engine.running,
        "waiting": engine.waiting,
        "restarts": engine.restarts,
        "failure": failure.message if failure else None,
        "trouble": engine.trouble,
        "library": dict(capabilities.library_facts) if capabilities is not None else {},
    }

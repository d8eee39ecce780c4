"""`/health` of a server that runs a user's handler and has no engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulator.autoscaling.handler_state import HandlerState
from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.autoscaling.start_failure import build_start_failure
from emulator.http.shutdown_state import ShutdownState
from emulator.status.health import Health
from tests.unit.emulator.asgi import call, serve_routes

FILE = Path("/p/handler.py")
FAILURE = build_start_failure("launched-1", FILE.name, "exited with code 1", ["no module named x"])


def handler_state(state: str, *, failed: bool = False) -> HandlerState:
    autoscaler: Any = SimpleNamespace(
        endpoint="p", python="/opt/python", handler_state=state, failure=FAILURE if failed else None
    )
    return HandlerState(WorkerProgram(command=(), file=FILE), autoscaler)


async def get_health(
    *handlers: HandlerState,
    journal: Any = None,
    shutdown: ShutdownState | None = None,
) -> tuple[int, dict[str, Any]]:
    health = Health(None, handlers, journal, shutdown or ShutdownState())
    response = await call(serve_routes([health.route()]), "/health")
    return response.status, json.loads(response.body)


@pytest.mark.parametrize(
    ("state", "failed", "status"),
    [
        ("starting", False, "loading"),
        ("ready", False, "ok"),
        ("idle", False, "ok"),
        ("failed", True, "degraded"),
        # Jobs run with older code than the user has saved.
        ("outdated", True, "degraded"),
    ],
)
async def test_health_follows_the_state_of_the_handler(
    state: str, failed: bool, status: str
) -> None:
    handler = handler_state(state, failed=failed)
    code, body = await get_health(handler)
    assert (code, body["status"], body["handler"]) == (200, status, handler.to_wire())


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["ready", "idle"], "ok"),
        (["ready", "starting"], "loading"),
        (["starting", "failed"], "degraded"),
    ],
)
async def test_health_follows_all_handlers(states: list[str], status: str) -> None:
    handlers = [handler_state(state, failed=state == "failed") for state in states]
    _, body = await get_health(*handlers)
    assert body["status"] == status
    assert body["handler"] == body["handlers"][0]
    assert [handler["state"] for handler in body["handlers"]] == states


async def test_health_of_a_failed_handler_has_the_reason() -> None:
    _, body = await get_health(handler_state("failed", failed=True))
    assert body["handler"]["failure"]["reason"] == "it exited with code 1"
    assert "no module named x" in body["handler"]["failure"]["output"]


async def test_health_without_an_engine_has_no_keys_of_an_engine() -> None:
    _, body = await get_health(handler_state("ready"))
    assert body.keys() == {"status", "handler", "handlers", "jobs", "batches"}
    assert body["batches"] == {"set_aside": []}
    assert body["jobs"] == {"database": "memory", "trouble": None, "set_aside": []}


async def test_health_without_engine_and_handler_is_ok() -> None:
    code, body = await get_health()
    assert (code, body["status"], "handler" in body) == (200, "ok", False)


@pytest.mark.parametrize("state", ["starting", "ready"])
async def test_health_is_degraded_when_jobs_cannot_be_written(state: str) -> None:
    journal = SimpleNamespace(write_error="the disk is full", set_aside=["jobs.sqlite3.1"])
    code, body = await get_health(handler_state(state), journal=journal)
    assert (code, body["status"]) == (200, "degraded")
    assert body["jobs"] == {
        "database": "unavailable",
        "trouble": "the disk is full",
        "set_aside": ["jobs.sqlite3.1"],
    }


@pytest.mark.parametrize(("state", "failed"), [("ready", False), ("failed", True)])
async def test_health_is_503_during_a_shutdown(state: str, failed: bool) -> None:
    shutdown = ShutdownState()
    shutdown.start_draining()
    code, body = await get_health(handler_state(state, failed=failed), shutdown=shutdown)
    assert (code, body["status"]) == (503, "draining")

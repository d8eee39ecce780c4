"""Fixtures: worker processes with their own control plane, stopped after the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from tests.integration.handler.control_plane import ControlPlane, Worker

SLOTS = 4

ANSWERS: list[dict[str, Any]] = [
    {"when": "hello", "pieces": ["He", "llo", " wor", "ld"], "delay_ms": 30},
    {"when": "fail", "pieces": ["He", {"error": "out of luck", "delay_ms": 100}]},
    {"when": "hang", "pieces": ["again", {"hang_s": 600}]},
    {"when": "slow", "pieces": ["so "], "repeat": 10, "delay_ms": 60},
    {"when": "long", "pieces": ["so "], "repeat": 10, "delay_ms": 250},
    {"when": "crash", "pieces": ["He", {"signal": "SIGSEGV", "delay_ms": 50}]},
    {},
]


class WorkerFactory(Protocol):
    def __call__(self, mode: str, **environment: str) -> Worker: ...


def _factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerFactory]:
    workers: list[Worker] = []

    def start(mode: str, **environment: str) -> Worker:
        folder = tmp_path_factory.mktemp(mode)
        script = folder / "script.json"
        script.write_text(json.dumps({"answers": ANSWERS, "slots": SLOTS}))
        worker = Worker(
            ControlPlane(),
            folder,
            **{
                "MODEL_PATH": str(script),
                "STREAM_MODE": mode,
                "STREAM_INTERVAL_MS": "1",
                "LOG_FORMAT": "json",
                "LOG_LEVEL": "DEBUG",
                **environment,
            },
        )
        worker.script = script
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.plane.close()
    for worker in workers:
        assert worker.plane.broken == []


@pytest.fixture
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerFactory]:
    """Starts workers that a test may kill."""
    yield from _factory(tmp_path_factory)


@pytest.fixture(scope="session")
def _lasting_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerFactory]:
    yield from _factory(tmp_path_factory)


@pytest.fixture(scope="session")
def aggregate_worker(_lasting_worker: WorkerFactory) -> Worker:
    """A worker in STREAM_MODE=aggregate that all tests share, so leave it alive."""
    return _lasting_worker("aggregate")


@pytest.fixture(scope="session")
def generator_worker(_lasting_worker: WorkerFactory) -> Worker:
    """A worker in STREAM_MODE=generator that all tests share, so leave it alive."""
    return _lasting_worker("generator")


@pytest.fixture(params=["aggregate", "generator"])
def worker(request: pytest.FixtureRequest) -> Worker:
    """Either of the shared workers."""
    shared: Worker = request.getfixturevalue(f"{request.param}_worker")
    return shared

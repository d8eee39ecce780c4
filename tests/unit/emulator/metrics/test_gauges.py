"""Gauges whose values are read at each scrape."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emulator.batches.models import BatchStatus
from emulator.metrics.definitions import PREFIX
from emulator.metrics.gauges import build_engine_metrics, build_job_metrics, build_npu_metrics
from emulator.metrics.snapshot import metrics_as_json
from emulator.settings.emulator_settings import EmulatorSettings
from engine import EngineState
from engine.backends.rkllm.board.npu_state import NpuState
from jobs import MemoryJobStore, NewJob


class Scene:
    """Fake parts of a server with given numbers."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(
            state=EngineState.READY, slots=4, running=3, waiting=2, restarts=1
        )
        states = (EngineState.READY, EngineState.READY, EngineState.LOADING)
        self.engine.instances = [SimpleNamespace(state=state) for state in states]
        self.store = MemoryJobStore(now=lambda: time.time() - self.ago_s)
        self.ago_s = 60.0
        self.workers: dict[str, dict[str, int]] = {}
        self.journal: Any = SimpleNamespace(write_error=None)
        self.batches: list[Any] = []
        self.endpoints = ["mine"]

    def read(self) -> dict[str, Any]:
        """Scrape and return the metrics by their names without the common prefix."""
        settings = EmulatorSettings(
            engine="scripted", endpoint_id="mine", model_name="tiny", max_jobs=77
        )
        registry: Any = SimpleNamespace(
            count_workers=lambda endpoint: self.workers.get(endpoint, {})
        )
        families = [
            *build_engine_metrics(settings, cast("Any", self.engine), lambda: self.batches),
            *build_job_metrics(settings, self.endpoints, self.store, registry, self.journal),
        ]
        return {
            name.removeprefix(PREFIX): value for name, value in metrics_as_json(families).items()
        }


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_npu_metrics_have_the_numbers_that_are_known() -> None:
    state = NpuState((0.65, 0.07, 0.0), 1e9, 49.2)
    values = metrics_as_json(build_npu_metrics(lambda: state))
    assert values == {
        f"{PREFIX}npu_load_ratio": {"0": 0.65, "1": 0.07, "2": 0.0},
        f"{PREFIX}npu_clock_hertz": 1e9,
        f"{PREFIX}npu_temperature_celsius": 49.2,
    }
    # A board whose numbers cannot be read has no samples, and so no wrong ones.
    assert not [sample for each in build_npu_metrics(NpuState) for sample in each.samples()]


def test_engine_numbers_are_read(scene: Scene) -> None:
    metrics = scene.read()
    assert metrics["engine_state"] == {
        "loading": 0,
        "ready": 1,
        "restarting": 0,
        "dead": 0,
        "unloaded": 0,
    }
    assert (metrics["engine_slots"], metrics["slots_in_use"], metrics["requests_waiting"]) == (
        4,
        3,
        2,
    )
    assert metrics["model_copies"] == {
        "loading": 1,
        "ready": 2,
        "restarting": 0,
        "dead": 0,
        "unloaded": 0,
    }
    assert metrics["engine_restarts_total"] == 1
    assert metrics["info"] == {"scripted": {"tiny": {"process": 1}}}
    scene.engine.state = EngineState.DEAD
    states = scene.read()["engine_state"]
    assert states.pop("dead") == 1
    assert set(states.values()) == {0}


async def test_oldest_job_is_of_the_own_endpoint(scene: Scene) -> None:
    assert scene.read()["oldest_job_wait_seconds"] == 0
    await scene.store.enqueue(NewJob(endpoint="other", input=b"1"))
    assert scene.read()["oldest_job_wait_seconds"] == 0
    await scene.store.enqueue(NewJob(endpoint="mine", input=b"1"))
    scene.ago_s = 0
    await scene.store.enqueue(NewJob(endpoint="mine", input=b"2"))
    assert 60 <= scene.read()["oldest_job_wait_seconds"] < 600
    scene.endpoints = ["idle", "mine"]
    assert 60 <= scene.read()["oldest_job_wait_seconds"] < 600
    scene.endpoints = ["mine"]
    assert (scene.read()["jobs"]["IN_QUEUE"], scene.read()["jobs_max"]) == (3, 77)


async def test_wait_is_not_negative_when_the_clock_is_set_back(scene: Scene) -> None:
    scene.ago_s = -600
    await scene.store.enqueue(NewJob(endpoint="mine", input=b"1"))
    assert scene.read()["oldest_job_wait_seconds"] == 0


def test_database_is_up_unless_it_has_trouble(scene: Scene) -> None:
    assert scene.read()["job_database_up"] == 1
    scene.journal.write_error = "no space left"
    assert scene.read()["job_database_up"] == 0
    scene.journal = None
    assert scene.read()["job_database_up"] == 1


def test_workers_of_all_handlers_are_counted(scene: Scene) -> None:
    scene.workers = {"mine": {"idle": 1, "running": 2}, "other": {"idle": 5}}
    scene.endpoints = ["mine", "other"]
    assert scene.read()["workers"] == {"idle": 6, "initializing": 0, "running": 2}


def test_workers_and_batches_are_counted_by_state(scene: Scene) -> None:
    scene.workers = {"mine": {"idle": 1, "running": 2}, "other": {"idle": 5}}
    scene.batches = [
        SimpleNamespace(status=each)
        for each in (BatchStatus.COMPLETED, BatchStatus.COMPLETED, BatchStatus.FAILED)
    ]
    metrics = scene.read()
    assert metrics["workers"] == {"idle": 1, "initializing": 0, "running": 2}
    assert {name: count for name, count in metrics["batches"].items() if count} == {
        "completed": 2,
        "failed": 1,
    }

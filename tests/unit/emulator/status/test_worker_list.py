from __future__ import annotations

from typing import Any

from emulator.status.worker_list import WorkerList
from tests.unit.emulator.autoscaling.scene import ENDPOINT, AutoscalerScene


class ListScene(AutoscalerScene):
    """Workers of an autoscaler and by hand, as the route lists them."""

    def __init__(self, **scaling: Any) -> None:
        super().__init__(**scaling)
        self.list = WorkerList(self.worker_registry, {ENDPOINT: self.autoscaler})

    def statuses(self, endpoint: str = ENDPOINT) -> dict[str, str]:
        description = self.list.describe(endpoint)
        workers = {worker["id"]: worker["status"] for worker in description["workers"]}
        counted = {key.upper(): count for key, count in description["summary"].items() if count}
        assert counted.pop("TOTAL", 0) == len(workers)
        assert counted == {each: [*workers.values()].count(each) for each in workers.values()}
        return workers


async def test_worker_is_listed_from_its_start_through_its_jobs() -> None:
    scene = ListScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    (process,) = scene.processes
    assert scene.statuses() == {process.name: "INITIALIZING"}
    scene.join(process)
    await scene.after(0.25)
    assert scene.statuses() == {process.name: "IDLE"}
    await scene.enqueue()
    jobs = await scene.take(process.name)
    assert scene.statuses() == {process.name: "RUNNING"}
    await scene.finish(jobs)
    assert scene.statuses() == {process.name: "IDLE"}


async def test_crash_looping_worker_is_listed_as_unhealthy_with_its_successor() -> None:
    scene = ListScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.processes[0].end(1)
    await scene.after(0.25)
    first = scene.processes[0].name
    assert scene.statuses() == {first: "UNHEALTHY"}
    await scene.after(1.5)
    second = scene.processes[1].name
    assert scene.statuses() == {first: "UNHEALTHY", second: "INITIALIZING"}
    scene.processes[1].end(1)
    await scene.after(0.25)
    assert scene.statuses() == {second: "UNHEALTHY"}


async def test_worker_that_reports_to_be_unhealthy_is_listed_so() -> None:
    scene = ListScene()
    scene.worker_registry.get_or_register(ENDPOINT, "by-hand")
    assert scene.statuses() == {"by-hand": "IDLE"}
    scene.worker_registry.mark_unhealthy(ENDPOINT, "by-hand", "its disk is full")
    assert scene.statuses() == {"by-hand": "UNHEALTHY"}


async def test_local_worker_is_listed_with_the_state_of_its_slots() -> None:
    scene = ListScene()
    for slots, status in [
        ((1, 1, 0), "RUNNING"),
        ((2, 0, 0), "IDLE"),
        ((0, 0, 2), "UNHEALTHY"),
        ((0, 0, 0), "INITIALIZING"),
    ]:
        scene.worker_registry.set_local_slots(ENDPOINT, lambda slots=slots: slots)  # type: ignore[misc]
        assert scene.statuses() == {"local": status}


async def test_endpoint_without_workers_has_an_empty_list() -> None:
    scene = ListScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    assert scene.list.describe("other") == {
        "endpointVersion": 1,
        "summary": {
            **{"running": 0, "idle": 0, "initializing": 0, "throttled": 0, "unhealthy": 0},
            "total": 0,
        },
        "workers": [],
    }


async def test_worker_with_older_code_is_stale_after_a_reload() -> None:
    scene = ListScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.join(scene.processes[0])
    await scene.after(0.25)
    scene.autoscaler.reload()
    await scene.after(0.25)
    description = scene.list.describe(ENDPOINT)
    assert description["endpointVersion"] == 2
    assert [(each["id"], each["isStale"], each["version"]) for each in description["workers"]] == [
        (scene.processes[0].name, True, 1),
        (scene.processes[1].name, False, 2),
    ]


async def test_entry_of_a_worker_has_all_fields() -> None:
    scene = ListScene(min_workers=1, max_workers=1)
    await scene.after(0.25)
    scene.time += 90
    (worker,) = scene.list.describe(ENDPOINT)["workers"]
    assert worker.pop("startedAt").endswith("Z")
    assert worker.pop("image").endswith("__main__.py")
    assert worker == {
        "id": scene.processes[0].name,
        "status": "INITIALIZING",
        "isStale": False,
        "version": 1,
        "gpuCount": 0,
        "uptimeSeconds": 90,
        "gpuTypeId": None,
        "dataCenterId": "local",
    }

"""The start of a worker: its name, its log and its bucket."""

from __future__ import annotations

import pytest

from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.bucket.keys import BUCKET_VARIABLES
from emulator.bucket.service import Bucket
from emulator.runpod.job_response import is_managed
from tests.integration.emulator.conftest import build_settings
from tests.unit.emulator.autoscaling.scene import ENDPOINT, URL, AutoscalerScene


async def test_worker_names_have_the_prefix_and_differ() -> None:
    names = []
    for scene in (AutoscalerScene(min_workers=2), AutoscalerScene(min_workers=2)):
        await scene.after(1)
        names += [process.name for process in scene.processes]
    assert len(set(names)) == 4
    assert all(is_managed(name) for name in names)
    assert not is_managed("local")


async def test_log_of_a_worker_that_cannot_be_started_has_the_reason() -> None:
    scene = AutoscalerScene(min_workers=1, max_workers=1)
    scene.refuses = True
    await scene.after(0.25)
    log = scene.logs.find(ENDPOINT, f"launched-{scene.autoscaler._starter._series}-1")
    assert log is not None
    assert log.is_closed
    assert log.lines_after(0)[0].text.endswith("could not be started: no such program")


async def test_worker_gets_the_servers_bucket_unless_the_user_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = AutoscalerScene(max_workers=1, min_workers=1)
    bucket = scene.autoscaler._starter._bucket = Bucket(build_settings({"job_db": ":memory:"}))
    await bucket.start()
    for name in BUCKET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    users: dict[str, str] = {"BUCKET_ACCESS_KEY_ID": "mine"}
    for variables, has_bucket in (({}, True), (users, False)):
        scene.autoscaler._starter.program = WorkerProgram(command=("x",), extra_variables=variables)
        await scene.autoscaler._start_worker(0.0)
        started = scene.processes[-1]
        assert (started.environment.get("BUCKET_ENDPOINT_URL") == f"{URL}/s3") is has_bucket
        assert ("bucket of this server" in str(started.log.lines_after(0))) is has_bucket
    await bucket.close()

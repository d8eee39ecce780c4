"""An image is built again after a change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emulator.autoscaling.containers.image_build import ImageBuild
from emulator.autoscaling.containers.worker_image import WorkerImage
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine
from tests.waiting import wait_until


class Scene:
    """A build with what it has reported."""

    def __init__(self, engine: FakeEngine, folder: Path) -> None:
        self.built: list[str] = []
        self.failed: list[tuple[str, str]] = []
        image = WorkerImage(
            engine=engine, reference="w", build_folder=folder, image_id="sha256:old"
        )
        self.image_build = ImageBuild(
            image,
            lambda built: self.built.append(built.image_id),
            lambda reason, output: self.failed.append((reason, output)),
        )


@pytest.fixture
async def scene(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[Scene]:
    engine.set_image("sha256:old")
    engine.write("build.sh", ":")
    scene = Scene(engine, tmp_path)
    scene.image_build.start()
    yield scene
    await scene.image_build.close()


def count_builds(engine: FakeEngine) -> int:
    return sum(call.startswith("build ") for call in engine.calls)


async def test_new_image_is_reported_and_earlier_builds_are_removed(
    engine: FakeEngine, scene: Scene
) -> None:
    engine.set_image("sha256:new")
    scene.image_build.request(["handler.py"])
    await wait_until(lambda: scene.built == ["sha256:new"])
    await wait_until(lambda: engine.calls[-1].startswith("image prune --force"))


async def test_unchanged_image_replaces_no_worker(
    engine: FakeEngine, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.image_build.request(["notes.txt"])
    await wait_until(lambda: "the image w is unchanged" in caplog.text)
    assert scene.built == []


async def test_failed_build_is_reported_and_its_repair_too(
    engine: FakeEngine, scene: Scene
) -> None:
    engine.write("build.sh", "echo step 1; echo no such package >&2; exit 9")
    scene.image_build.request(["Dockerfile"])
    await wait_until(lambda: len(scene.failed) == 1)
    reason, output = scene.failed[0]
    assert reason == "was not built: docker build ended with exit code 9"
    assert output == "step 1\nno such package\n"
    # The file is as it was before, and so is the image.
    engine.write("build.sh", ":")
    scene.image_build.request(["Dockerfile"])
    await wait_until(lambda: scene.built == ["sha256:old"])


async def test_build_without_a_command_is_a_failed_one(engine: FakeEngine, scene: Scene) -> None:
    engine.set_image("sha256:new", config={})
    scene.image_build.request(["Dockerfile"])
    await wait_until(lambda: len(scene.failed) == 1)
    assert scene.failed[0][0].startswith("has neither CMD nor ENTRYPOINT")
    assert scene.built == []


async def test_changes_during_a_build_lead_to_one_more(
    engine: FakeEngine, scene: Scene, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    engine.write("build.sh", f'until [ -e "{go}" ]; do sleep 0.01; done')
    scene.image_build.request(["a.py"])
    await wait_until(lambda: count_builds(engine) == 1)
    for name in ("b.py", "c.py"):
        scene.image_build.request([name])
    engine.set_image("sha256:2")
    go.touch()
    await wait_until(lambda: count_builds(engine) == 2)
    await wait_until(lambda: scene.built == ["sha256:2"])


async def test_close_ends_a_running_build(engine: FakeEngine, scene: Scene) -> None:
    engine.write("build.sh", "exec sleep 60")
    scene.image_build.request(["a.py"])
    await wait_until(lambda: count_builds(engine) == 1)
    await scene.image_build.close()
    assert (scene.built, scene.failed) == ([], [])

"""One container: its output, its exit code, how it ended, and its removal."""

from __future__ import annotations

from emulator.autoscaling.containers.container_process import (
    OUT_OF_MEMORY,
    REMOVED_FROM_OUTSIDE,
    spawn_container,
)
from emulator.autoscaling.containers.worker_image import WorkerImage
from emulator.autoscaling.worker_log import WorkerLog
from tests.unit.emulator.autoscaling.containers.conftest import FakeEngine
from tests.waiting import wait_until

REMOVED = "rm --force --volumes worker-rkllm-w1"


def printed(log: WorkerLog) -> list[str]:
    return list(log.last_printed(10))


async def test_container_prints_ends_with_its_code_and_is_removed(engine: FakeEngine) -> None:
    engine.set_container()
    engine.write("run.sh", 'echo "hello $GREETED"; exit 3')
    log = WorkerLog()
    process = await spawn_container(
        "w1", WorkerImage(engine=engine, reference="w"), {"GREETED": "Ada"}, log
    )
    assert process.returncode is None
    assert await process.wait() == 3
    assert process.returncode == 3
    assert process.end_reason is None
    assert printed(log) == ["hello Ada"]
    assert engine.calls[-1] == REMOVED


async def test_container_without_enough_memory_says_so(engine: FakeEngine) -> None:
    engine.set_container(is_out_of_memory=True)
    engine.write("run.sh", "exit 137")
    log = WorkerLog()
    process = await spawn_container("w1", WorkerImage(engine=engine, reference="w"), {}, log)
    assert await process.wait() == 137
    assert process.end_reason == OUT_OF_MEMORY


async def test_kill_removes_the_container_through_the_supervisor(engine: FakeEngine) -> None:
    engine.set_container()
    engine.write("run.sh", "echo ready; exec sleep 60")
    log = WorkerLog()
    process = await spawn_container("w1", WorkerImage(engine=engine, reference="w"), {}, log)
    await wait_until(lambda: printed(log) == ["ready"])
    process.kill()
    assert await process.wait() == 137
    assert process.end_reason is None
    assert REMOVED in engine.calls


async def test_container_that_another_program_removed_says_so(engine: FakeEngine) -> None:
    engine.write("run.sh", "exit 137")
    image = WorkerImage(engine=engine, reference="w")
    process = await spawn_container("w1", image, {}, WorkerLog())
    assert await process.wait() == 137
    assert process.end_reason == REMOVED_FROM_OUTSIDE


async def test_container_that_cannot_be_removed_is_named_in_its_log(engine: FakeEngine) -> None:
    engine.set_container()
    program = engine.folder / "docker"
    program.write_text(
        program.read_text().replace('rm -f "$here/container.json"', "echo busy >&2; exit 1")
    )
    engine.write("run.sh", "exit 0")
    log = WorkerLog()
    process = await spawn_container("w1", WorkerImage(engine=engine, reference="w"), {}, log)
    assert await process.wait() == 0
    assert [line.text for line in log.lines_after(-1)] == ["its container was not removed: busy"]

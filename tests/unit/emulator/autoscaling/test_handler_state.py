"""The state of a user's handler through starts, reloads and failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.handler_state import HandlerState
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.worker_program import WorkerProgram, handler_program
from emulator.autoscaling.worker_starter import WorkerStarter
from emulator.settings.limits import ScalingPolicy
from jobs import JobStatus
from tests.unit.emulator.autoscaling.scene import ENDPOINT, URL, AutoscalerScene

PROGRAM = handler_program(Path("/p/handler.py"), Interpreter("/opt/python", "chosen"))


class HandlerScene(AutoscalerScene):
    """An autoscaler of a user's handler, with at most one worker per state of the code."""

    def __init__(
        self, *, requeues: bool = False, min_workers: int = 1, ends_old_first: bool = False
    ) -> None:
        super().__init__()
        self.autoscaler = Autoscaler(
            self.store,
            self.worker_registry,
            ENDPOINT,
            ScalingPolicy(min_workers=min_workers, max_workers=1),
            WorkerStarter(ENDPOINT, PROGRAM, spawn=self._spawn),
            requeues_on_reload=requeues,
            ends_old_first=ends_old_first,
            now=lambda: self.time,
            wall_clock=lambda: self.time,
        )
        self.autoscaler._url = URL
        self.handler = HandlerState(
            WorkerProgram(command=(), file=Path("/p/handler.py")), self.autoscaler
        )

    @property
    def state(self) -> str:
        return str(self.handler.to_wire()["state"])

    async def started(self) -> None:
        """Let the newest worker ask for its first job."""
        await self.after(0.5)
        self.join(self.processes[-1])
        await self.after(0.25)

    def is_paused(self, number: int) -> bool:
        name = self.processes[number].name
        return self.worker_registry.get_or_register(ENDPOINT, name).is_paused


async def test_handler_state_is_starting_until_a_worker_asks_for_a_job() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    assert scene.handler.to_wire() == {
        "endpoint": ENDPOINT,
        "file": "/p/handler.py",
        "image": None,
        "python": "/opt/python",
        "state": "starting",
        "failure": None,
    }
    await scene.started()
    assert scene.state == "ready"


async def test_handler_state_is_idle_while_no_worker_need_run() -> None:
    scene = HandlerScene(min_workers=0)
    assert scene.state == "idle"
    await scene.after(1)
    assert (scene.state, scene.processes) == ("idle", [])
    await scene.enqueue()
    await scene.after(10)
    assert scene.state == "starting"
    scene.join(scene.processes[0])
    assert scene.state == "ready"


async def test_handler_state_is_idle_while_its_last_worker_ends() -> None:
    scene = HandlerScene(min_workers=0)
    await scene.enqueue()
    await scene.after(10)
    scene.join(scene.processes[0])
    await scene.finish(await scene.take(scene.processes[0].name))
    for _ in range(20):
        await scene.after(1)
    assert scene.processes[0].returncode is None
    assert scene.state == "idle"


async def test_handler_that_ends_its_worker_is_not_idle() -> None:
    scene = HandlerScene(min_workers=0)
    await scene.enqueue()
    await scene.after(10)
    scene.join(scene.processes[0])
    await scene.after(0.5)
    scene.processes[0].end(1)
    await scene.after(0.25)
    assert scene.state == "starting"


async def test_handler_state_is_ready_before_the_next_tick_when_a_worker_has_joined() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.join(scene.processes[0])
    assert scene.state == "ready"


async def test_handler_has_no_failure_before_the_next_tick_when_its_second_start_succeeds() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.processes[0].end(1)
    await scene.after(0.25)
    assert scene.state == "failed"
    await scene.after(1.5)
    scene.join(scene.processes[1])
    assert (scene.state, scene.handler.to_wire()["failure"]) == ("ready", None)


async def test_killed_start_is_retried_before_the_jobs_fail() -> None:
    scene = HandlerScene()
    (job,) = await scene.enqueue()
    for number in range(3):
        while len(scene.processes) == number:
            await scene.after(0.25)
        assert scene.state == "starting"
        scene.processes[-1].end(137)
        await scene.after(0.25)
    assert scene.state == "failed"
    now = await scene.store.get(job.id)
    assert now is not None
    assert now.status is JobStatus.FAILED


async def test_code_that_has_started_before_is_restarted_before_the_jobs_fail() -> None:
    scene = HandlerScene()
    await scene.started()
    scene.processes[0].end(1)
    (job,) = await scene.enqueue()
    for number in (1, 2, 3):
        while len(scene.processes) == number:
            await scene.after(0.25)
        now = await scene.store.get(job.id)
        assert now is not None
        assert now.status is JobStatus.IN_QUEUE
        scene.processes[-1].end(1)
        await scene.after(0.25)
    assert scene.state == "failed"


async def test_handler_that_does_not_start_has_failed_and_answers_jobs() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.processes[0].prints = []
    scene.processes[0].end(139)
    (job,) = await scene.enqueue()
    await scene.after(0.25)
    assert scene.state == "failed"
    reason = "it was killed by SIGSEGV and printed nothing"
    assert scene.handler.to_wire()["failure"]["reason"] == reason
    now = await scene.store.get(job.id)
    assert now is not None
    assert now.status is JobStatus.FAILED
    assert f"handler.py did not start: {reason}" in str(now.error)
    # The next start may succeed, for example because a missing file now exists.
    await scene.after(1.5)
    await scene.started()
    assert (scene.state, scene.handler.to_wire()["failure"]) == ("ready", None)


async def test_command_that_cannot_be_started_is_a_failure_of_the_handler() -> None:
    scene = HandlerScene()
    scene.refuses = True
    await scene.after(0.5)
    failure = scene.handler.to_wire()["failure"]
    assert failure["reason"] == "it could not be started: no such program"


async def test_dotenv_that_cannot_be_read_is_a_failure_of_the_handler(tmp_path: Path) -> None:
    scene = HandlerScene()
    scene.autoscaler._starter.program = replace(
        scene.autoscaler._starter.program, file=tmp_path / "handler.py"
    )
    file = tmp_path / ".env"
    await scene.started()
    file.write_bytes(b"CITY=Z\xfcrich\n")
    scene.autoscaler.reload()
    await scene.after(0.5)
    reason = f"it could not be started: {file} is not UTF-8: invalid start byte (byte 6)"
    assert scene.handler.to_wire()["failure"]["reason"] == reason
    assert not scene.is_paused(0)
    file.write_text("CITY=Zürich\n")
    scene.autoscaler.reload()
    await scene.after(0.5)
    assert (scene.state, len(scene.processes)) == ("starting", 2)


async def test_reload_replaces_the_worker_when_the_new_one_has_started() -> None:
    scene = HandlerScene()
    await scene.started()
    scene.autoscaler.reload()
    await scene.after(0.5)
    assert (scene.state, scene.is_paused(0), len(scene.processes)) == ("starting", True, 2)
    assert scene.processes[0].terminated == 0
    await scene.started()
    assert (scene.state, scene.processes[0].terminated) == ("ready", 1)


async def test_reload_to_broken_code_resumes_the_last_worker_that_works() -> None:
    scene = HandlerScene()
    await scene.started()
    scene.autoscaler.reload()
    await scene.started()
    # The next reload begins before the worker with the oldest code has ended.
    scene.autoscaler.reload()
    await scene.after(0.5)
    assert scene.is_paused(1)
    scene.processes[2].prints = ["NameError: name 'x' is not defined"]
    scene.processes[2].end(1)
    await scene.after(0.5)
    assert scene.state == "outdated"
    assert [each.terminated for each in scene.processes[:2]] == [1, 0]
    assert not scene.is_paused(1)
    # No other worker is started with the same broken code.
    await scene.after(90)
    assert len(scene.processes) == 3
    scene.autoscaler.reload()
    await scene.started()
    assert (scene.state, scene.processes[1].terminated) == ("ready", 1)


async def test_reload_retries_a_start_without_the_old_worker_that_may_have_its_port() -> None:
    scene = HandlerScene()
    await scene.started()
    (job,) = await scene.enqueue()
    await scene.take(scene.processes[0].name)
    scene.autoscaler.reload()
    await scene.after(0.5)
    scene.processes[1].prints = ["OSError: [Errno 98] Address already in use"]
    scene.processes[1].end(1)
    await scene.after(30)
    # The old worker ends after its job, and no other worker starts before.
    assert (scene.processes[0].terminated, scene.processes[0].killed) == (1, 0)
    assert (scene.state, len(scene.processes)) == ("starting", 2)
    assert scene.autoscaler.explain_wait() == (
        f"the next worker starts when {scene.processes[0].name} has ended"
    )
    await scene.finish([job.replace(attempt=1)])
    scene.processes[0].end(0)
    await scene.started()
    assert (scene.state, len(scene.processes)) == ("ready", 3)
    # The next reload starts a new worker first, like the first reload.
    scene.autoscaler.reload()
    await scene.after(0.5)
    assert (scene.processes[2].terminated, len(scene.processes)) == (0, 4)


async def test_start_that_fails_without_an_old_worker_too_is_a_failure_of_the_handler() -> None:
    scene = HandlerScene()
    await scene.started()
    scene.autoscaler.reload()
    await scene.after(0.5)
    scene.processes[1].end(1)
    await scene.after(0.5)
    scene.processes[0].end(0)
    await scene.after(0.5)
    scene.processes[2].end(1)
    await scene.after(0.5)
    assert scene.state == "failed"


async def test_reload_ends_the_old_worker_first_where_that_is_set() -> None:
    scene = HandlerScene(ends_old_first=True)
    await scene.started()
    (job,) = await scene.enqueue()
    await scene.take(scene.processes[0].name)
    scene.autoscaler.reload()
    await scene.after(30)
    assert (scene.processes[0].terminated, scene.is_paused(0)) == (1, True)
    assert (scene.processes[0].killed, len(scene.processes)) == (0, 1)
    await scene.finish([job.replace(attempt=1)])
    # A shell script does not pass the signal on.
    await scene.after(0.5)
    assert scene.processes[0].killed == 1
    await scene.started()
    assert (scene.state, len(scene.processes)) == ("ready", 2)


async def test_replacement_starts_after_the_end_of_the_old_worker_where_that_is_set() -> None:
    scene = HandlerScene(ends_old_first=True)
    await scene.started()
    name = scene.processes[0].name
    scene.worker_registry.get_or_register(ENDPOINT, name).requests_replacement = True
    await scene.after(2)
    assert (scene.processes[0].terminated, len(scene.processes)) == (1, 1)
    scene.processes[0].end(0)
    await scene.after(0.5)
    assert len(scene.processes) == 2


async def test_reload_forgets_that_earlier_code_did_not_start() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.processes[0].end(1)
    await scene.after(0.25)
    assert scene.worker_registry.count_workers(ENDPOINT)["unhealthy"] == 1
    scene.autoscaler.reload()
    await scene.after(0.25)
    assert scene.worker_registry.count_workers(ENDPOINT)["unhealthy"] == 0
    assert len(scene.processes) == 2


async def test_reload_kills_a_worker_that_still_starts_with_older_code() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.autoscaler.reload()
    await scene.after(0.5)
    assert [each.killed for each in scene.processes] == [1, 0]
    assert scene.worker_registry.count_workers(ENDPOINT)["unhealthy"] == 0


async def test_reload_lets_jobs_finish_or_requeues_them() -> None:
    for requeues in (False, True):
        scene = HandlerScene(requeues=requeues)
        await scene.started()
        (job,) = await scene.enqueue()
        await scene.take(scene.processes[0].name)
        scene.autoscaler.reload()
        await scene.started()
        now = await scene.store.get(job.id)
        assert now is not None
        assert (now.status is JobStatus.IN_QUEUE, now.lost_attempts) == (requeues, 0)
        assert scene.processes[0].killed == requeues


async def test_installed_packages_restart_a_failed_handler() -> None:
    scene = HandlerScene()
    await scene.after(0.5)
    scene.autoscaler.retry_start()
    await scene.after(0.5)
    assert len(scene.processes) == 1
    scene.processes[0].prints = ["ModuleNotFoundError: No module named 'torch'"]
    scene.processes[0].end(1)
    await scene.after(0.5)
    failure = scene.handler.to_wire()["failure"]
    assert (
        "No module named 'torch'; it ran with /opt/python (chosen); run `cd /p && "
        in (failure["reason"])
    )
    scene.autoscaler.retry_start()
    await scene.after(0.25)
    assert len(scene.processes) == 2
    assert scene.handler.to_wire()["failure"] is None

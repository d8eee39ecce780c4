"""The states of a supervised process, whose child is pretended."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import EngineClosed, EngineStalled
from engine.hooks import Hooks
from engine.hosts.frames import encode
from engine.hosts.inflight import InflightRequests
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.process_state import ProcessState
from engine.hosts.process_supervisor import ProcessSupervisor
from engine.timeouts import Timeouts
from tests.waiting import wait_until

CAPABILITIES = Capabilities(backend="scripted", model="m", context_length=64, slots=1)
LOADED = {"loaded": CAPABILITIES.to_wire(), "has_run": False}


class Child:
    """A process that ends when it is killed, or when a test says so."""

    pid = 1
    age_s = 1.0
    has_crashed = False

    def __init__(self, *arguments: Any) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.returncode: int | None = None
        self.kills = 0
        self._has_ended = threading.Event()

    def send(self, message: dict[str, Any]) -> None:
        self.theirs.sendall(encode({"messages": [message]}))

    def exit(self) -> None:
        self.returncode = 0
        self._has_ended.set()
        self.theirs.close()

    def kill(self) -> None:
        self.kills += 1
        if self.returncode is None:
            self.exit()

    def end(self, grace_s: float, kill_timeout_s: float = 0.0) -> None:
        self._has_ended.wait(30)

    async def wait_for_exit(self) -> str:
        return "the engine process has exited"


class SupervisorScene:
    """A supervisor that waits for minutes before the next start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 300.0)
        monkeypatch.setattr("engine.hosts.losses.restart_policy.MAX_BACKOFF_S", 300.0)
        monkeypatch.setattr("engine.hosts.process_supervisor.EngineProcess", self._build_child)
        self.children: list[Child] = []
        self.refuses = False
        self.states: list[ProcessState] = []
        self.supervisor = ProcessSupervisor(
            BackendConfig.from_wire("scripted", {}),
            Timeouts(),
            Hooks(()),
            InflightRequests(lambda message: None, lambda error: None),
            CrashCauses(),
            on_frame=lambda frame: None,
            on_change=lambda: self.states.append(self.supervisor.state),
        )

    def _build_child(self, *arguments: Any) -> Child:
        if self.refuses:
            raise OSError("no memory")
        self.children.append(Child())
        return self.children[-1]

    async def wait_for(self, state: ProcessState) -> None:
        await wait_until(lambda: self.supervisor.state is state)

    async def load(self) -> None:
        self.supervisor.start()
        self.children[-1].send(LOADED)
        await self.wait_for(ProcessState.LOADED)

    async def lose(self) -> None:
        self.children[-1].exit()
        await self.wait_for(ProcessState.DOWN)
        await wait_until(lambda: self.supervisor.restarts == 1)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SupervisorScene]:
    scene = SupervisorScene(monkeypatch)
    yield scene
    for child in scene.children:
        child.exit()
    await scene.supervisor.close()


async def test_process_is_started_once_and_loaded_by_its_message(scene: SupervisorScene) -> None:
    scene.supervisor.spawn()
    scene.supervisor.spawn()
    assert scene.supervisor.state is ProcessState.STARTING
    await scene.load()
    assert len(scene.children) == 1


async def test_refused_start_is_down_and_repeated_after_a_pause(scene: SupervisorScene) -> None:
    scene.refuses = True
    scene.supervisor.spawn()
    states = [scene.supervisor.state]
    scene.supervisor.start()
    states.append(scene.supervisor.state)
    assert states == [ProcessState.UNLOADED, ProcessState.DOWN]
    await wait_until(lambda: scene.supervisor.restarts == 1)
    scene.supervisor.start()
    assert scene.children == []


async def test_load_timer_of_a_lost_process_has_no_effect(
    scene: SupervisorScene,
) -> None:
    scene.supervisor.start()
    await scene.lose()
    scene.supervisor._on_load_timeout()
    assert scene.supervisor.state is ProcessState.DOWN
    assert scene.supervisor.losses.kill_reason is None


async def test_message_of_a_killed_process_does_not_load_it(scene: SupervisorScene) -> None:
    scene.supervisor.start()
    (child,) = scene.children
    child.send(LOADED)
    scene.supervisor.kill_and_restart(EngineStalled("it hangs"))
    await wait_until(lambda: scene.supervisor.restarts == 1)
    assert scene.supervisor.capabilities is None
    assert scene.states[:2] == [ProcessState.KILLED, ProcessState.DOWN]


async def test_unload_ends_the_pause_and_the_next_start_is_immediate(
    scene: SupervisorScene,
) -> None:
    await scene.load()
    await scene.lose()
    await scene.supervisor.unload()
    assert scene.supervisor.state is ProcessState.UNLOADED
    assert scene.supervisor.losses.downtime is None
    await scene.load()
    assert len(scene.children) == 2


async def test_cancelled_unload_leaves_no_process(scene: SupervisorScene) -> None:
    await scene.load()
    (child,) = scene.children
    unloading = asyncio.create_task(scene.supervisor.unload())
    await scene.wait_for(ProcessState.UNLOADING)
    unloading.cancel()
    await asyncio.gather(unloading, return_exceptions=True)
    assert child.kills == 1
    assert scene.supervisor.state is ProcessState.UNLOADED
    await scene.load()
    assert len(scene.children) == 2


async def test_closed_supervisor_stays_closed(scene: SupervisorScene) -> None:
    await scene.load()
    scene.children[0].exit()
    await scene.supervisor.close()
    assert isinstance(scene.supervisor.failure, EngineClosed)
    await scene.supervisor.unload()
    scene.supervisor.revive()
    scene.supervisor.start()
    assert scene.supervisor.state is ProcessState.CLOSED
    assert scene.supervisor.failure is not None
    assert len(scene.children) == 1

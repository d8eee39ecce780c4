"""A host process never outlives its parent."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ScriptFactory
from tests.waiting import PATIENCE, wait_until_blocking

EXIT_TIMEOUT_S = 10.0 * PATIENCE
ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, signal, sys
from engine import BackendConfig, Engine, EngineConfig, GenerationRequest

async def main(path, what):
    engine = Engine(EngineConfig(backend=BackendConfig.from_wire("scripted", {"model_path": path})))
    await engine.ready()
    if what == "wedged":
        stream = await engine.generate(GenerationRequest(prompt="deaf"))
        await anext(stream)
    print("child", engine._host.pid, flush=True)
    if what == "returns":
        return
    if what == "raises":
        raise RuntimeError("on purpose")
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    print("waiting", flush=True)
    await interrupted.wait()
    stream = await engine.generate(GenerationRequest(prompt="last answer"))
    print("".join([delta.text async for batch in stream for delta in batch]), flush=True)
    await engine.close()
    print("closed", engine.restarts, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Program:
    """A small program with an engine, in its own process group."""

    def __init__(self, script: Path, behaviour: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(script), behaviour],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            # A killed process leaves its scratch folder behind.
            env={**os.environ, "TMPDIR": str(script.parent)},
            bufsize=0,
            start_new_session=True,
        )
        self.child = int(self.line().removeprefix("child "))

    def line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(30 * PATIENCE), "the program said nothing"
        return self.process.stdout.readline().decode().strip()

    def child_has_exited(self) -> bool:
        try:
            # A zombie process has no command line.
            return not Path(f"/proc/{self.child}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return True


@pytest.fixture
def start(script: ScriptFactory) -> Iterator[Callable[[str], Program]]:
    path = script({"when": "deaf", "pieces": ["x", {"hang_s": 600, "deaf": True}]}, {})
    started: list[Program] = []

    def begin(behaviour: str) -> Program:
        started.append(Program(path, behaviour))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            os.killpg(program.process.pid, signal.SIGKILL)
        program.process.communicate(timeout=30)


@pytest.mark.parametrize("behaviour", ["waits", "wedged"])
def test_parent_killed(start: Callable[[str], Program], behaviour: str) -> None:
    program = start(behaviour)
    os.kill(program.process.pid, signal.SIGKILL)
    wait_until_blocking(program.child_has_exited, EXIT_TIMEOUT_S)


def test_parent_killed_while_the_child_is_stopped(start: Callable[[str], Program]) -> None:
    program = start("waits")
    os.kill(program.child, signal.SIGSTOP)
    os.kill(program.process.pid, signal.SIGKILL)
    wait_until_blocking(program.child_has_exited, EXIT_TIMEOUT_S)


@pytest.mark.parametrize("behaviour", ["returns", "raises"])
def test_parent_that_ends_without_closing(start: Callable[[str], Program], behaviour: str) -> None:
    program = start(behaviour)
    assert program.process.wait(20) == (1 if behaviour == "raises" else 0)
    wait_until_blocking(program.child_has_exited, EXIT_TIMEOUT_S)


def test_interrupt_of_the_process_group_lets_the_parent_finish(
    start: Callable[[str], Program],
) -> None:
    program = start("waits")
    assert program.line() == "waiting"
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.line() == "last answer"
    assert program.line() == "closed 0"
    assert program.process.wait(20) == 0
    wait_until_blocking(program.child_has_exited, EXIT_TIMEOUT_S)

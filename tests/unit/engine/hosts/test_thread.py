"""Load a model on a thread of this process, and leave the process as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from types import FrameType

import pytest

from engine import BackendConfig, Engine
from engine.backends.scripted import ScriptedBackend
from tests.conftest import EngineFactory, ScriptFactory
from tests.waiting import run_ready_tasks

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PRINT_VARIABLES = f"import os; print([os.environ.get(name) for name in {VARIABLES}])"


def read_variables_of_a_child() -> str:
    """Return the variables that a child process inherits from the C environment."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_VARIABLES], capture_output=True, check=True, timeout=30
    )
    return done.stdout.decode().strip()


def build_engine(engine_factory: EngineFactory, script: ScriptFactory, **fields: object) -> Engine:
    options = {"model_path": str(script({}, **fields)), "model_name": "scripted"}
    return engine_factory(BackendConfig.from_wire("scripted", options), isolation="thread")


async def test_load_has_openmp_settings_that_children_do_not_inherit(
    engine_factory: EngineFactory, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    during: list[str] = []
    load = ScriptedBackend.load

    def recording_load(backend: ScriptedBackend) -> object:
        during.append(read_variables_of_a_child())
        assert not set(VARIABLES) & os.environ.keys()
        return load(backend)

    monkeypatch.setattr(ScriptedBackend, "load", recording_load)
    await build_engine(engine_factory, script).ready()
    assert during == ["['PASSIVE', '300']"]
    assert read_variables_of_a_child() == "[None, None]"


async def test_load_keeps_a_signal_handler_that_is_installed_meanwhile(
    engine_factory: EngineFactory, script: ScriptFactory
) -> None:
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        received.append(number)

    engine = build_engine(engine_factory, script, load_ms=100)
    loading = asyncio.create_task(engine.ready())
    await run_ready_tasks(1)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        await loading
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)

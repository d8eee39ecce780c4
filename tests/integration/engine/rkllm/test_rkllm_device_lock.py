"""Two servers and one NPU: the second server is refused, and the copies of one are not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine import BackendConfig
from engine.backends.rkllm.board import device_lock
from engine.errors import ModelLoadFailed
from tests.conftest import EngineFactory
from tests.fake_rkllm import read_log
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, child_pid
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once", "own_descriptors")
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = 'answer\n  say "yes"\n'
# Loads a model as a server does, and waits.
SERVER = """
import asyncio, json, sys
from engine import BackendConfig, Engine, EngineConfig

async def main():
    engine = Engine(EngineConfig(backend=BackendConfig.from_wire("rkllm", json.loads(sys.argv[1]))))
    await engine.ready()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def own_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the files of each test, which a server keeps open for its whole life."""
    monkeypatch.setattr(device_lock, "_descriptors", {})


@pytest.fixture
def options(library: Path, model: Callable[[str], Path], tmp_path: Path) -> dict[str, Any]:
    """Return the backend's options of two servers with the same NPU."""
    return {
        "model_path": str(model(SCRIPT)),
        "model_name": "fake",
        "lib_path": str(library),
        "device_path": str(tmp_path / "npu"),
    }


@asynccontextmanager
async def running_server(options: dict[str, Any]) -> AsyncIterator[Process]:
    """Run another server with a loaded model."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, json.dumps(options), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(60):
            assert await server.stdout.readline() == b"ready\n"
        yield server
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def test_second_server_is_refused_until_the_first_is_killed(
    engine_factory: EngineFactory, options: dict[str, Any], isolation: str
) -> None:
    config = BackendConfig.from_wire("rkllm", options)
    async with running_server(options) as server:
        with pytest.raises(ModelLoadFailed) as caught:
            await engine_factory(config, isolation=isolation).ready()
        assert caught.value.message == (
            f"the NPU ({options['device_path']}) is in use by process {server.pid}, and two "
            "servers on one NPU can crash the kernel: stop the other one, or set "
            "RKLLM_DEVICE_LOCK=off to run both"
        )
        server.send_signal(signal.SIGKILL)
        await server.wait()
        # Its engine process ends a moment later: a server that is restarted tries again.
        await wait_until(lambda: device_lock._try_lock(device_files(options)) is None)
    assert (await ask(engine_factory(config, isolation=isolation)))[0] == "yes"


def device_files(options: dict[str, Any]) -> tuple[int, ...]:
    return device_lock.open_device(options["device_path"])


@pytest.mark.long
async def test_second_server_is_allowed_with_the_lock_off(
    engine_factory: EngineFactory, options: dict[str, Any], isolation: str
) -> None:
    async with running_server(options):
        config = BackendConfig.from_wire("rkllm", {**options, "device_lock": False})
        assert (await ask(engine_factory(config, isolation=isolation)))[0] == "yes"


async def test_copies_of_one_server_share_the_device(
    engine_factory: EngineFactory, options: dict[str, Any], call_log: Path
) -> None:
    copies = [BackendConfig.from_wire("rkllm", {**options, "base_domain_id": n}) for n in (0, 1)]
    engine = engine_factory(copies[0], copies=(copies[1],))
    await engine.ready()
    await wait_until(lambda: engine.slots == 2)
    inits = [call.pid for call in read_log(call_log) if call.name == "rkllm_init"]
    assert len(set(inits)) == 2


@only_processes
async def test_restarted_engine_process_is_not_refused_by_its_own_server(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    engine = rkllm_of(SCRIPT, device_path=str(tmp_path / "npu"))
    assert (await ask(engine))[0] == "yes"
    os.kill(child_pid(engine), signal.SIGKILL)
    await wait_until(lambda: engine.restarts == 1)
    assert (await ask(engine))[0] == "yes"

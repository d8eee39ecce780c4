"""Invalid model files, and the effects of loading on the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine import BackendConfig, EngineState
from engine.errors import EngineCrashed, ModelLoadFailed
from tests.conftest import EngineFactory
from tests.integration.engine.support import ask, child_pid, first_text, read, request

ROOT = Path(__file__).resolve().parents[3]


def llamacpp(path: Path) -> BackendConfig:
    options = {"model_path": str(path), "model_name": "m", "threads": 1, "context_length": 256}
    return BackendConfig.from_wire("llamacpp", {**options, "slots": 2})


@pytest.fixture
def damaged(request: pytest.FixtureRequest, tmp_path: Path, model_path: Path) -> Path:
    """The truncated model, or another file in its place."""
    path = tmp_path / "damaged.gguf"
    size = model_path.stat().st_size
    match request.param:
        case "missing":
            pass
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("<html>404: there is no such model</html>" * 100)
        case int(kept) | float(kept):
            with model_path.open("rb") as model:
                path.write_bytes(model.read(kept if isinstance(kept, int) else int(size * kept)))
    return path


@pytest.mark.long_except(
    "process-0.999",
    "process-text",
    "thread-empty",
    "thread-0.5",
    "process-missing",
    "thread-folder",
)
@pytest.mark.parametrize(
    "damaged", ["missing", "folder", "empty", "text", 4, 1000, 0.5, 0.999], indirect=True
)
@pytest.mark.parametrize("isolation", ["process", "thread"], indirect=True)
async def test_bad_model_file_is_named(
    engine_factory: EngineFactory, damaged: Path, isolation: str
) -> None:
    # R54
    engine = engine_factory(llamacpp(damaged), isolation=isolation)
    with pytest.raises(ModelLoadFailed, match=r"^MODEL_PATH: .*damaged\.gguf") as caught:
        await engine.generate(request())
    assert "\n" not in caught.value.message
    assert engine.state is EngineState.DEAD
    assert (engine.restarts, engine.running) == (0, 0)


async def test_killed_host_is_loaded_again(engine_factory: EngineFactory, model_path: Path) -> None:
    engine = engine_factory(llamacpp(model_path))
    async with await engine.generate(request(ignore_eos=True)) as stream:
        await first_text(stream)
        os.kill(child_pid(engine), signal.SIGKILL)
        with pytest.raises(EngineCrashed, match="SIGKILL"):
            await read(stream)
    _, finish = await ask(engine, "Hi", max_tokens=2, ignore_eos=True)
    assert finish.usage.completion_tokens == 2
    assert engine.restarts == 1


async def test_close_right_after_the_load_exits_with_code_0(
    engine_factory: EngineFactory, model_path: Path, scale: int
) -> None:
    async def load_and_close() -> int | None:
        engine = engine_factory(llamacpp(model_path))
        await engine.ready()
        process = engine._host._supervisor._process  # type: ignore[attr-defined]
        await engine.close()
        code: int | None = process.returncode
        return code

    for _ in range(scale):
        # Several at a time, so that the library's threads are delayed.
        codes = await asyncio.gather(*(load_and_close() for _ in range(8)))
        assert codes == [0] * 8


async def test_interrupt_of_the_process_group_does_not_end_the_host(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    # Some builds of llama.cpp's server install handlers of their own, which end the process.
    engine = engine_factory(llamacpp(model_path))
    await engine.ready()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        os.kill(child_pid(engine), number)
    _, finish = await ask(engine, "Hi", max_tokens=2, ignore_eos=True)
    assert finish.usage.completion_tokens == 2
    assert engine.restarts == 0


@pytest.mark.long_except("process")
@pytest.mark.parametrize("isolation", ["process", "thread"], indirect=True)
async def test_close_leaves_no_scratch_files(
    engine_factory: EngineFactory,
    model_path: Path,
    isolation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A short one: a socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        engine = engine_factory(llamacpp(model_path), isolation=isolation)
        await ask(engine, "Hi", max_tokens=1)
        assert os.listdir(scratch)
        await engine.close()
        assert os.listdir(scratch) == []


@pytest.mark.parametrize("isolation", ["process", "thread"], indirect=True)
async def test_scratch_folder_too_long_for_a_socket_is_not_the_models_fault(
    engine_factory: EngineFactory,
    model_path: Path,
    isolation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / ("long" * 25)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    engine = engine_factory(llamacpp(model_path), isolation=isolation)
    with pytest.raises(ModelLoadFailed, match=r"TMPDIR: .* too long"):
        await engine.ready()
    await engine.close()
    assert os.listdir(scratch) == []


INTERRUPTED = """
import asyncio, os, signal, sys
from engine import BackendConfig, Engine, EngineConfig

async def main():
    options = {"model_path": sys.argv[1], "model_name": "m", "threads": 1, "context_length": 256}
    config = EngineConfig(backend=BackendConfig.from_wire("llamacpp", options), isolation="thread")
    engine = Engine(config)
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await engine.ready()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(terminated.wait(), 10)
    print("SIGTERM handled", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(10)
    finally:
        await engine.close()

# Whoever runs the tests in the background may have had SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


@pytest.mark.long
def test_signal_handlers_are_restored_after_a_load_in_this_process(model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(model_path)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.splitlines() == ["SIGTERM handled", "KeyboardInterrupt"], done.stderr
    assert done.returncode == 0

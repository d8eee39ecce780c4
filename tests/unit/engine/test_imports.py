"""The engine imports without any backend's library, and without what only others need."""

import subprocess
import sys
from pathlib import Path

import pytest

import engine

ROOT = Path(__file__).resolve().parents[3]

FOREIGN = ("xllamacpp", "runpod", "pydantic", "pydantic_settings", "structlog", "starlette")
MODULES = ("engine", "engine.hosts.child", "engine.backends.llamacpp", "engine.backends.scripted")
# What runs beside a native library, in a process that somebody waits for.
HOSTED = ("engine.hosts.child", "engine.backends.rkllm.backend", "engine.backends.rkllm.detect")


@pytest.mark.parametrize("module", MODULES)
def test_importing_brings_nothing_foreign(module: str) -> None:
    loaded = _loaded_with(module)
    assert "engine" in loaded
    assert loaded.isdisjoint(FOREIGN)
    assert loaded.isdisjoint({"handler", "validation", "emulator", "jobs", "batch"})


@pytest.mark.parametrize("module", HOSTED)
def test_a_process_with_a_backend_begins_without_what_its_parent_needs(module: str) -> None:
    assert _loaded_with(module).isdisjoint({"asyncio", "ssl"})


def test_every_public_name_is_there() -> None:
    assert all(hasattr(engine, name) for name in engine.__all__)
    assert sorted(name for names in engine._NAMES.values() for name in names) == engine.__all__


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'engine' has no attribute 'Enigne'"):
        engine.Enigne  # noqa: B018 - asked for is enough


def _loaded_with(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=ROOT,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}

"""The engine imports without any backend's library, and without what only others need."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

FOREIGN = ("xllamacpp", "runpod", "pydantic", "pydantic_settings", "structlog", "starlette")
MODULES = ("engine", "engine.hosts.child", "engine.backends.llamacpp", "engine.backends.scripted")


@pytest.mark.parametrize("module", MODULES)
def test_importing_brings_nothing_foreign(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=ROOT,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "engine" in loaded
    assert loaded.isdisjoint(FOREIGN)
    assert loaded.isdisjoint({"handler", "validation", "emulator", "jobs", "batch"})


def test_every_public_name_is_there() -> None:
    import engine

    assert all(hasattr(engine, name) for name in engine.__all__)

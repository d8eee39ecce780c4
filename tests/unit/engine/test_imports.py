"""The engine imports without any backend's library, and without what only others need."""

import pytest

from tests.modules import loaded_with

FOREIGN = ("xllamacpp", "runpod", "pydantic", "pydantic_settings", "structlog", "starlette")
MODULES = ("engine", "engine.hosts.child", "engine.backends.llamacpp", "engine.backends.scripted")
# What runs beside a native library, in a process that somebody waits for.
HOSTED = ("engine.hosts.child", "engine.backends.rkllm.backend", "engine.backends.rkllm.detect")


@pytest.mark.parametrize("module", MODULES)
def test_importing_brings_nothing_foreign(module: str) -> None:
    loaded = loaded_with(module)
    assert "engine" in loaded
    assert loaded.isdisjoint(FOREIGN)
    assert loaded.isdisjoint({"handler", "validation", "emulator", "jobs", "batch"})


@pytest.mark.parametrize("module", HOSTED)
def test_a_process_with_a_backend_begins_without_what_its_parent_needs(module: str) -> None:
    assert loaded_with(module).isdisjoint({"asyncio", "ssl"})

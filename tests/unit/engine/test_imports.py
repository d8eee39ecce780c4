"""The engine can be imported without any backend's library, and imports no unneeded modules."""

import pytest

from tests.modules import loaded_with

FOREIGN = ("xllamacpp", "runpod", "pydantic", "pydantic_settings", "structlog", "starlette")
MODULES = ("engine", "engine.hosts.child", "engine.backends.llamacpp", "engine.backends.scripted")
# Modules of the host process, whose start a request may wait for.
HOSTED = ("engine.hosts.child", "engine.backends.rkllm.backend", "engine.backends.rkllm.abi.detect")


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_imports_no_foreign_library(module: str) -> None:
    loaded = loaded_with(module)
    assert "engine" in loaded
    assert loaded.isdisjoint(FOREIGN)
    assert loaded.isdisjoint({"handler", "validation", "emulator", "jobs", "batch"})


@pytest.mark.parametrize("module", HOSTED)
def test_host_process_does_not_import_the_parents_modules(module: str) -> None:
    assert loaded_with(module).isdisjoint({"asyncio", "ssl"})

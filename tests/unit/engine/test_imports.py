"""The engine can be imported without any backend's library."""

import pytest

from tests.modules import loaded_with

FOREIGN = ("xllamacpp", "runpod", "pydantic", "pydantic_settings", "structlog", "starlette")
MODULES = ("engine", "engine.hosts.child", "engine.backends.llamacpp", "engine.backends.scripted")


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_imports_no_foreign_library(module: str) -> None:
    loaded = loaded_with(module)
    assert "engine" in loaded
    assert loaded.isdisjoint(FOREIGN)
    assert loaded.isdisjoint({"handler", "validation", "emulator", "jobs", "batch"})

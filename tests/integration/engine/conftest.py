"""Engines of both kinds of isolation over the scripted backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine import Engine
from tests.conftest import EngineFactory, ScriptFactory
from tests.integration.engine.support import scripted

EngineMaker = Callable[..., Engine]


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Run a test once with each kind of host."""
    return str(request.param)


@pytest.fixture
def fast_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart crashed hosts without the usual pause."""
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 0.01)


@pytest.fixture
def engine_of(
    engine_factory: EngineFactory, script: ScriptFactory, isolation: str, fast_restarts: None
) -> EngineMaker:
    """Return a function that builds an engine with these scripted answers."""
    of_script = {"slots", "context_length", "load_ms", "load_error", "load_signal", "capabilities"}

    def build(*answers: dict[str, Any], **options: Any) -> Engine:
        fields = {name: options.pop(name) for name in of_script & options.keys()}
        path = script(*answers, **fields)
        return engine_factory(scripted(path), **{"isolation": isolation, **options})

    return build

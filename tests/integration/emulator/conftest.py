"""Fixtures that start servers on free ports and close them after the test."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import pytest

import emulator.middleware.auth
import emulator.middleware.origin_check
from emulator.settings.emulator_settings import EmulatorSettings
from tests.integration.emulator import upstream
from tests.integration.emulator.serving import Server, run_server

_UPSTREAM_TESTS = upstream.read_table()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the APIs in front of another server too."""
    path = Path(metafunc.module.__file__)
    if "serve" in metafunc.fixturenames and _UPSTREAM_TESTS.has_file(path):
        forms = [pytest.param(None, id=pytest.HIDDEN_PARAM), upstream.UPSTREAM]
        metafunc.parametrize("serve", forms, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that cannot hold there."""
    items[:] = upstream.choose_tests(items, _UPSTREAM_TESTS)


class Serve(Protocol):
    async def __call__(self, script: Path | None = None, **settings: Any) -> Server: ...


# Long enough to be measured, and short enough for a test of every route.
WORKER_DELAY_S = 0.01


def build_settings(values: Mapping[str, Any]) -> EmulatorSettings:
    """Return a server's settings, without a look for a file of settings, which takes long."""

    def skip_file(
        *_: type[EmulatorSettings], init_settings: Any, env_settings: Any, **__: Any
    ) -> tuple[Any, ...]:
        return init_settings, env_settings

    with patch.object(EmulatorSettings, "settings_customise_sources", classmethod(skip_file)):
        return EmulatorSettings(**values)


@pytest.fixture
async def serve(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Serve]:
    """Return a function that starts servers; keywords are settings.

    By default, a server has the scripted engine on a thread. With an upstream, the script is that
    of another server, and this one has the openai engine. A refused call of a worker is delayed by
    a hundredth of the usual second.
    """
    monkeypatch.setattr(emulator.middleware.auth, "_WORKER_DELAY_S", WORKER_DELAY_S)
    monkeypatch.setattr(emulator.middleware.origin_check, "_WORKER_DELAY_S", WORKER_DELAY_S)
    async with AsyncExitStack() as servers:

        async def run(values: Mapping[str, Any]) -> Server:
            return await servers.enter_async_context(run_server(build_settings(values)))

        async def start(script: Path | None = None, **settings: Any) -> Server:
            common = {
                "engine_isolation": "thread",
                "job_db": ":memory:",
                # Do not wait for generations that a test leaves running.
                "drain_s": 0,
            }
            if getattr(request, "param", None) != upstream.UPSTREAM:
                scripted = {"engine": "scripted", "model_path": script}
                return await run(common | scripted | settings)
            assert settings.get("engine", "scripted") == "scripted", "the table lists other engines"
            behind = await run(common | upstream.upstream_values(script, settings))
            return await run(common | upstream.front_values(script, behind.url, settings))

        yield start


class Gate:
    """A script that cannot be read until the gate opens: its model keeps loading until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    async def open(self, **script: Any) -> None:
        await asyncio.to_thread(self.path.write_text, json.dumps(script))


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate.json")
    yield made
    # A test that failed before it opened its gate would wait without end for the load.
    with suppress(OSError):
        os.close(os.open(made.path, os.O_WRONLY | os.O_NONBLOCK))

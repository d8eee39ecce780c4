"""A server in this process that runs the handler under test, with its jobs in memory."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from common.setting_error import SettingError
from emulator.app import create_app
from emulator.autoscaling.program.handler_file import name_endpoint
from emulator.autoscaling.program.image_program import name_image_endpoint
from emulator.autoscaling.program.worker_program import WorkerProgram
from emulator.handler_tests.worker_output import WorkerOutput
from emulator.server.server import Server, build_uvicorn_config
from emulator.settings.emulator_settings import IN_MEMORY, EmulatorSettings
from emulator.startup.components import Components, build_components
from emulator.startup.preflight import listening_sockets

_POLL_INTERVAL_S = 0.05
_WEEK_MS = 7 * 24 * 3600 * 1000


class HandlerNotStarted(Exception):
    """No worker has started; `reason` is one line, `output` what the worker printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = output


class LocalServer:
    """A running server: its address, its endpoint, and the state and the output of its worker."""

    def __init__(self, url: str, components: Components) -> None:
        self.url = url
        self.endpoint = components.settings.endpoint_id
        self._autoscaler = components.autoscalers[self.endpoint]
        self._worker_registry = components.worker_registry
        self.output = WorkerOutput(components.worker_logs, self.endpoint)

    async def wait_until_ready(self) -> None:
        """Return when a worker waits for jobs. Raises HandlerNotStarted if it has ended before."""
        while self._autoscaler.handler_state != "ready":
            if (failure := self._autoscaler.failure) is not None:
                raise HandlerNotStarted(
                    f"{failure.program} did not start: {failure.reason}", failure.output
                )
            # Of a command there is no failure, only its unhealthy worker.
            reasons = self._worker_registry.unhealthy_workers(self.endpoint).values()
            if self._autoscaler.failed_starts and reasons:
                raise HandlerNotStarted(f"the worker did not start: {next(iter(reasons))}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    def restart_worker(self) -> None:
        """Replace the worker: its handler may still run a job that was cancelled."""
        self._autoscaler.reload()


@asynccontextmanager
async def run_local_server(
    settings: EmulatorSettings, program: WorkerProgram, variables: Mapping[str, str]
) -> AsyncIterator[LocalServer]:
    """Run a server on a free port of this machine while the context is open.

    `variables` are set for the workers, whatever the environment and the file .env have. At the end
    no job is waited for, and all processes of the workers have ended.

    Raises:
        SettingError: a setting cannot be used, or the server did not start.
    """
    sockets = listening_sockets("127.0.0.1", 0)
    with _without_variables(variables):
        program = replace(program, extra_variables=variables)
        settings = adapt_settings(settings, program)
        components = build_components(settings, None, {settings.endpoint_id: program})
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_listening(url: str) -> None:
            components.start_workers(url)
            ready.set_result(url)

        limits = components.settings.connection_limits()
        server = EmbeddedServer(
            build_uvicorn_config(create_app(components), limits),
            components.graceful_shutdown,
            on_listening,
        )
        task = asyncio.create_task(serve_until_shutdown(server, sockets))
        try:
            either: set[asyncio.Future[Any]] = {task, ready}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise SettingError("the server for the tests did not start; --verbose shows why")
            yield LocalServer(ready.result(), components)
        finally:
            components.graceful_shutdown.force.set()
            components.graceful_shutdown.requested.set()
            await task


class EmbeddedServer(Server):
    """A server whose process handles the signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


async def serve_until_shutdown(server: Server, sockets: list[socket.socket]) -> None:
    """Serve, and return at the shutdown, or if the application does not start."""
    try:
        await server.serve(sockets)
    except SystemExit:
        # Uvicorn ends the process if the application does not start.
        return


def adapt_settings(settings: EmulatorSettings, program: WorkerProgram) -> EmulatorSettings:
    """Return settings under which a test's result depends only on the handler.

    One worker without a model, no key, no faults and no rate limits. A job whose worker crashes is
    not run again.
    """
    fields = type(settings).model_fields
    faults = {name: fields[name].default for name in fields if name.startswith("fault")}
    changes: dict[str, object] = {
        **faults,
        "host": "127.0.0.1",
        "api_keys": "",
        "job_db": IN_MEMORY,
        "batch_dir": None,
        "local_worker": False,
        "handler_file": "",
        "workers": 1,
        "workers_min": 1,
        "worker_command": "",
        "worker_image": "",
        "worker_build": None,
        "reload": "off",
        "max_losses": 1,
        "min_execution_timeout_ms": 1,
        "execution_timeout_ms": _WEEK_MS,
        "otel_exporter_otlp_endpoint": None,
        "drain_s": 0,
    }
    if "endpoint_id" not in settings.model_fields_set:
        if program.image is not None:
            changes["endpoint_id"] = name_image_endpoint(program.image.reference)
        elif program.file is not None:
            changes["endpoint_id"] = name_endpoint(program.file)
    return settings.model_copy(update=changes)


@contextmanager
def _without_variables(names: Mapping[str, str]) -> Iterator[None]:
    """Remove variables from the environment, which workers inherit before any others."""
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)

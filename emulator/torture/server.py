"""The server of the command: the real one, with a scripted engine and jobs in memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.setting_error import SettingError
from emulator.app import create_app
from emulator.handler_tests.local_server import EmbeddedServer, serve_until_shutdown
from emulator.server.server import build_uvicorn_config
from emulator.settings.emulator_settings import IN_MEMORY, EmulatorSettings
from emulator.startup.components import build_components
from emulator.startup.preflight import listening_sockets
from emulator.torture.answer import MODEL_NAME, build_script
from emulator.torture.shaped_app import ShapedApp, ShapedRequests
from handler.settings.engine_configs import build_engine

_ENDPOINT = "default"
_KEY = "torture"
_ADDRESS = "127.0.0.1"


class ShapedServer:
    """A running server with one port for each client that runs at the same time."""

    def __init__(self, app: ShapedApp, ports: Sequence[int]) -> None:
        self._app = app
        self.ports = ports

    def begin(self, port: int, requests: ShapedRequests) -> None:
        """Serve a port with these faults from now on."""
        self._app.begin(port, requests)


def client_variables(port: int) -> dict[str, str]:
    """Return the variables by which clients find the server.

    Those for a proxy stay as they are, and the server is added to the exceptions: a proxy has
    another machine at this address.
    """
    url = f"http://{_ADDRESS}:{port}"
    # Some clients read the one spelling first, and some the other one.
    exceptions = [os.environ.get(name, "").strip(", ") for name in ("no_proxy", "NO_PROXY")]
    no_proxy = ",".join([*filter(None, dict.fromkeys(exceptions)), _ADDRESS])
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        # LiteLLM, LangChain and older versions of OpenAI's client.
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": _KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": _KEY,
        "OLLAMA_HOST": url,
        "RUNPOD_ENDPOINT_BASE_URL": f"{url}/v2",
        "RUNPOD_ENDPOINT_ID": _ENDPOINT,
        "RUNPOD_API_KEY": _KEY,
        "TORTURE_URL": url,
        "TORTURE_MODEL": MODEL_NAME,
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


@asynccontextmanager
async def run_shaped_server(port_count: int) -> AsyncIterator[ShapedServer]:
    """Run a server on free ports of this machine while the context is open.

    Its settings are the defaults, whatever the environment has. Raises SettingError if it does not
    start.
    """
    sockets = [each for _ in range(port_count) for each in listening_sockets(_ADDRESS, 0)]
    with TemporaryDirectory(prefix="worker-rkllm-torture-") as folder:
        script = _write_script(folder)
        settings = EmulatorSettings.model_construct(
            engine="scripted",
            engine_isolation="thread",
            model_path=script,
            model_name=MODEL_NAME,
            job_db=IN_MEMORY,
            endpoint_id=_ENDPOINT,
            faults_per_request=True,
            drain_s=0,
        )
        components = build_components(settings, build_engine(settings))
        app = ShapedApp(create_app(components))
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = EmbeddedServer(
            build_uvicorn_config(app, components.settings.connection_limits()),
            components.graceful_shutdown,
            ready.set_result,
        )
        task = asyncio.create_task(serve_until_shutdown(server, sockets))
        try:
            either: set[asyncio.Future[Any]] = {task, ready}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise SettingError("the server for the client did not start; --verbose shows why")
            yield ShapedServer(app, [_port_of(each) for each in sockets])
        finally:
            components.graceful_shutdown.force.set()
            components.graceful_shutdown.requested.set()
            await task


def _write_script(folder: str) -> Path:
    script = Path(folder, "script.json")
    script.write_text(json.dumps(build_script()), encoding="utf-8")
    return script


def _port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port

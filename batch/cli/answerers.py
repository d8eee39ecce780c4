"""The two ways to answer the lines of `batch run`: an engine in this process, or servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from batch.line_executor import EngineLost, Executor, ExecutorLost, LineExecutor
from batch.settings import BatchSettings
from engine.errors import EngineError
from handler.composition import build_services, build_validation
from handler.settings.engine_configs import build_engine
from handler.settings.model_settings import resolve_models

DEFAULT_CONCURRENCY = 32
_NOT_ALLOWED = frozenset({401, 403})


class Answerer(Protocol):
    """Opens an executor of lines, and closes it. Owned by the event loop once open."""

    @property
    def executor(self) -> Executor:
        """The executor, which answers lines between `open` and `close`."""

    @property
    def concurrency(self) -> int:
        """How many lines are answered at a time; known after `open`."""

    async def open(self, report: Callable[[str], object]) -> None:
        """Get ready, and report what happens in sentences. Raises ExecutorLost."""

    async def close(self) -> None:
        """Free everything."""


class EngineAnswerer:
    """The engine of the settings."""

    def __init__(self, settings: BatchSettings) -> None:
        """Build the engine, and download its model if it is on the Hub. Raises SettingError."""
        self._settings = settings = resolve_models(settings)
        self._engine = build_engine(settings)
        services = build_services(settings, self._engine, build_validation(settings))
        self.executor: Executor = LineExecutor(services, self._engine)

    @property
    def concurrency(self) -> int:
        """One line for each slot of the engine, if BATCH_AT_ONCE is not set."""
        return self._settings.batch_at_once or self._engine.slots

    async def open(self, report: Callable[[str], object]) -> None:
        """Load the model. Raises EngineLost."""
        report(f"loading {self._settings.served_model}")
        try:
            await self._engine.ready()
        except EngineError as error:
            raise EngineLost(str(error)) from None

    async def close(self) -> None:
        """Unload the model."""
        await self._engine.close()


class ServerAnswerer:
    """One or several OpenAI-compatible servers."""

    def __init__(
        self, settings: BatchSettings, urls: Sequence[str], key: str | None, concurrency: int
    ) -> None:
        # Imported here because most batches have an engine.
        from batch.remote.concurrency_limit import ConcurrencyLimit
        from batch.remote.executor import RemoteExecutor, open_client
        from engine.backends.openai.server_pool import ServerPool

        self.concurrency = concurrency
        self._servers = ServerPool(urls)
        self._http = open_client(key, settings.request_timeout_s, concurrency)
        self.executor: Executor = RemoteExecutor(
            self._http,
            self._servers,
            ConcurrencyLimit(concurrency),
            patience_s=settings.batch_patience_s,
        )

    async def open(self, report: Callable[[str], object]) -> None:
        """Ask each server for its models. Raises ExecutorLost if none answers, or one refuses."""
        import httpx2

        from engine.backends.openai.server_models import list_models, read_models

        failures: list[str] = []
        for server in self._servers.servers:
            try:
                response = await list_models(self._http, server.url)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failures.append(f"{server.name} does not answer: {error or type(error).__name__}")
                continue
            if response.status_code in _NOT_ALLOWED:
                raise ExecutorLost(
                    f"{server.name} answered with {response.status_code}: --key-env names the "
                    "variable with its key"
                )
            server.models = [model.id for model in read_models(response.content)]
        if len(failures) == len(self._servers.servers):
            raise ExecutorLost("; ".join(failures))
        for failure in failures:
            report(failure)
        names = [server.name for server in self._servers.servers]
        report(f"sending lines to {', '.join(names)}, {self.concurrency} at a time")

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

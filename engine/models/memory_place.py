"""The place of one engine's model in a memory that several models share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.config import BackendConfig
from engine.errors import EngineError, EngineUnavailable
from engine.hosts.base import Host
from engine.models.load_retry import LoadRetry
from engine.models.memory import ModelMemory, Residency
from engine.models.model_check import check_model_file
from engine.request import Priority


class MemoryPlace:
    """Loads the model of a host for its requests; owned by the event loop.

    Without a shared memory (`share`) the model always has its place, and all methods return at
    once. A model that could not be loaded is tried again after a pause (`LoadRetry`).
    """

    def __init__(
        self, host: Host, config: BackendConfig, max_queue: int, on_revival: Callable[[], None]
    ) -> None:
        self._host = host
        self._max_queue = max_queue
        self._on_revival = on_revival
        self._options = config.options
        self._residency: Residency | None = None
        self.load_retry = LoadRetry()
        # Held while a failed host is made ready for the next load.
        self._revival = asyncio.Lock()
        # Set when the host has changed, for `_load`.
        self._has_changed = asyncio.Event()

    def share(self, memory: ModelMemory, name: str, need_bytes: int, keep_alive_s: float) -> None:
        """Load the model only while it has a place in a memory; called once, before all else."""
        self._residency = memory.add(name, need_bytes, self._load, self._host.unload, keep_alive_s)

    @property
    def residency(self) -> Residency | None:
        """The model's place in the memory; None if it always stays loaded."""
        return self._residency

    @property
    def is_unloaded(self) -> bool:
        """Whether the model is out of the memory, although it could be loaded."""
        residency = self._residency
        return residency is not None and not residency.is_loaded and self._host.failure is None

    @property
    def waiting(self) -> int:
        """How many requests wait for the place."""
        return 0 if self._residency is None else len(self._residency.waiters)

    def can_retry(self, failure: EngineError | None) -> bool:
        """Return whether a request may load the model now, after this failure."""
        if self._residency is None:
            return False
        return failure is None or self.load_retry.is_due(failure)

    async def enter(self, priority: Priority) -> None:
        """Wait until the model may be loaded; `leave` must follow.

        Raises QueueFull or EngineUnavailable, after which it must not.
        """
        if self._residency is None:
            return
        if self._host.failure is not None:
            await self._revive()
        if not self._residency.is_loaded:
            # Before other models are unloaded for it.
            await asyncio.to_thread(
                check_model_file, self._options.model_path, self._options.model_name
            )
        interactive = priority is Priority.INTERACTIVE
        await self._residency.enter(self._max_queue if interactive else None)

    def leave(self) -> None:
        """Stop using the model."""
        if self._residency is not None:
            self._residency.leave()

    @asynccontextmanager
    async def use(self, priority: Priority) -> AsyncIterator[None]:
        """Use the model in a block. Raises like `enter`."""
        await self.enter(priority)
        try:
            yield
        except EngineUnavailable as error:
            raise self.add_retry_time(error) from None
        finally:
            self.leave()

    def add_retry_time(self, error: EngineError) -> EngineError:
        """Return an error of the host with the time from which a request loads the model again.

        Other errors are returned as they are, and all of a model that always stays loaded.
        """
        return error if self._residency is None else self.load_retry.add_time(error)

    def on_host_change(self) -> None:
        """Take the host's new state."""
        self._has_changed.set()
        if self._host.loaded:
            self.load_retry.record_load()
        if self._host.failure is not None:
            self.load_retry.record_failure(self._host.failure)
            if self._residency is not None:
                self._residency.release()

    async def _revive(self) -> None:
        """Let a model that could not be loaded be tried again; within its pause, raise the reason.

        Raises EngineUnavailable.
        """
        async with self._revival:
            failure = self._host.failure
            if failure is None:
                return
            if not self.load_retry.is_due(failure):
                raise self.add_retry_time(failure).with_traceback(None)
            # The process that has failed may still be there.
            await self._host.unload()
            self._on_revival()
            self._host.revive()

    async def _load(self) -> bool:
        """Load the model; return at the first crash too, and whether there is still a process."""
        host = self._host
        starting = asyncio.create_task(host.ready())
        try:
            while not host.loaded and host.failure is None and host.downtime is None:
                self._has_changed.clear()
                await self._has_changed.wait()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        return host.failure is None

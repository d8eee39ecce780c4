"""Copies of one model, each in a process of its own, as one host."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineClosed, EngineError
from engine.hosts.base import Host
from engine.hosts.downtime import Downtime
from engine.stream import TokenStream

logger = logging.getLogger(__name__)


class PoolHost:
    """Gives each run to the loaded copy with the fewest under way.

    `capabilities.slots` are those of the copies that are loaded. They are told anew when a copy
    dies, before what ran on it ends, so that nobody is let in for a slot that is gone; one that
    comes back brings its slots with it. `failure` is set when the last copy has failed for good.
    The hosts are processes: one that is asked about a run of another's does nothing. Owned by the
    event loop, like the hosts in it.
    """

    threaded = False

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)
        # Put together when something changes, and not for each request.
        self.capabilities: Capabilities | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._changed: asyncio.Event | None = None
        self._starting: list[asyncio.Task[None]] = []
        # Vectors hold a slot as runs do, and are no runs.
        self._embeds: Counter[Host] = Counter()
        for host in self._hosts:
            host.on_change(self._on_change)

    @property
    def failure(self) -> EngineError | None:
        """What ended the first copy, once all have ended; None while one lives."""
        failures = [host.failure for host in self._hosts]
        return failures[0] if all(failures) else None

    @property
    def loaded(self) -> bool:
        """Whether a request would be run now by one of them."""
        return any(host.loaded for host in self._hosts)

    @property
    def downtime(self) -> Downtime | None:
        """Why no copy takes runs: that of the copy that will be started first."""
        if self.loaded:
            return None
        periods = [host.downtime for host in self._hosts if host.failure is None]
        known = [each for each in periods if each is not None]
        if not known or len(known) < len(periods):
            # One of them loads for the first time.
            return None
        first = min(known, key=lambda each: each.next_start or each.finishes_by or 0.0)
        return replace(first, since=max(each.since for each in known))

    @property
    def restarts(self) -> int:
        """How often any of them was started again."""
        return sum(host.restarts for host in self._hosts)

    @property
    def running(self) -> int:
        """How many runs are under way on all of them."""
        return sum(host.running for host in self._hosts)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def abandon(self) -> None:
        """Kill all of them, while nothing was asked of any."""
        for host in self._hosts:
            host.abandon()

    def spawn(self) -> None:
        """Begin loading all of them."""
        for host in self._hosts:
            host.spawn()

    async def ready(self) -> Capabilities:
        """Wait until the first copy is loaded. Raises ModelLoadFailed, EngineDead, EngineClosed."""
        if not self._starting:
            self._starting = [asyncio.create_task(self._start(host)) for host in self._hosts]
        while True:
            if (failure := self.failure) is not None:
                # The same error for everyone who asks: its traceback must not grow with each.
                raise failure.with_traceback(None)
            if self.loaded and (capabilities := self.capabilities) is not None:
                return capabilities
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()

    async def _start(self, host: Host) -> None:
        try:
            await host.ready()
        except EngineClosed:
            return
        except EngineError as error:
            logger.error("copy %d of a model is not there: %s", self._hosts.index(host), error)

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run on the least busy copy."""
        self._least_busy().start_run(stream)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as its backend can."""
        for host in self._hosts:
            host.abort(run_id)

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Get rid of the process that holds the run, and of no other."""
        for host in self._hosts:
            host.kill_stuck_run(run_id, error)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Ask one of the backend's side calls of the least busy copy. Raises EngineError."""
        await self.ready()
        host = self._least_busy()
        if op != "embed":
            return await host.call(op, payload)
        self._embeds[host] += 1
        try:
            return await host.call(op, payload)
        finally:
            self._embeds[host] -= 1

    def detach(self) -> None:
        """Let another event loop own the copies, which serve nothing at the moment."""
        for task in self._starting:
            task.cancel()
        self._starting = []
        self._changed = None
        for host in self._hosts:
            host.detach()

    async def close(self) -> None:
        """Close all of them at once; bounded like one."""
        await asyncio.gather(*(host.close() for host in self._hosts))
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _loaded(self) -> list[Host]:
        return [host for host in self._hosts if host.loaded]

    def _least_busy(self) -> Host:
        def busy(host: Host) -> int:
            return host.running + self._embeds[host]

        return min(self._loaded() or self._hosts, key=busy)

    def _capabilities_of_all(self) -> Capabilities | None:
        """Return what a copy can do, with the slots of all that are loaded; None until one was."""
        known = [host.capabilities for host in self._loaded() or self._hosts]
        found = [each for each in known if each is not None]
        if not found:
            return None
        # Where none is loaded, those who are let in wait for the first that will be.
        slots = sum(each.slots for each in found) if self.loaded else found[0].slots
        return replace(found[0], slots=slots)

    def _on_change(self) -> None:
        self.capabilities = self._capabilities_of_all()
        if self._changed is not None:
            self._changed.set()
        for callback in self._callbacks:
            callback()

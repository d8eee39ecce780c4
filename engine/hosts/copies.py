"""Several copies of one model, each in its own process, as one host."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.backends.base import PREFILL_CALLS, SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineClosed, EngineError
from engine.hosts.base import Host
from engine.hosts.losses.downtime import Downtime
from engine.runs.stream import TokenStream

logger = logging.getLogger(__name__)


class CopiesHost:
    """Gives each run to the loaded copy with the fewest runs in flight.

    `capabilities.slots` is the sum over the loaded copies. It is updated when a copy dies, before
    the runs on that copy end, so that no request is admitted to a slot that is gone; a copy that
    is restarted adds its slots again. `failure` is set when the last copy has failed permanently.
    A host ignores calls about a run that it does not have. Owned by the event loop, like its hosts.
    """

    threaded = False

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)
        # Computed when a host changes, and not for each request.
        self.capabilities: Capabilities | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._changed: asyncio.Event | None = None
        self._starting: list[asyncio.Task[None]] = []
        # Embedding calls in flight, which use a slot but do not count as runs.
        self._prefill_calls: Counter[Host] = Counter()
        for host in self._hosts:
            host.on_change(self._on_change)

    @property
    def failure(self) -> EngineError | None:
        """Why the first copy has ended, once all have ended; None while one is alive."""
        failures = [host.failure for host in self._hosts]
        return failures[0] if all(failures) else None

    @property
    def loaded(self) -> bool:
        """Whether a request would start now on one of the copies."""
        return any(host.loaded for host in self._hosts)

    @property
    def downtime(self) -> Downtime | None:
        """Why no copy takes runs: the downtime of the copy that will be started first."""
        if self.loaded:
            return None
        periods = [host.downtime for host in self._hosts if host.failure is None]
        downtimes = [each for each in periods if each is not None]
        if not downtimes or len(downtimes) < len(periods):
            # A copy without a downtime is loading for the first time.
            return None
        first = min(downtimes, key=lambda each: each.next_start or each.finishes_by or 0.0)
        return replace(first, since=max(each.since for each in downtimes))

    @property
    def restarts(self) -> int:
        """How often any copy was restarted."""
        return sum(host.restarts for host in self._hosts)

    @property
    def running(self) -> int:
        """How many runs are in flight on all copies."""
        return sum(host.running for host in self._hosts)

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes of all copies."""
        return [pid for host in self._hosts for pid in host.pids]

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def abandon(self) -> None:
        """Kill all copies at once; they must not have any requests."""
        for host in self._hosts:
            host.abandon()

    def spawn(self) -> None:
        """Begin loading all copies."""
        for host in self._hosts:
            host.spawn()

    async def ready(self) -> Capabilities:
        """Wait until the first copy is loaded. Raises ModelLoadFailed, EngineDead, EngineClosed."""
        if not self._starting:
            self._starting = [asyncio.create_task(self._start(host)) for host in self._hosts]
        while True:
            if (failure := self.failure) is not None:
                # All callers get the same exception object: its traceback must not grow with each.
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
        """Start the stream's run on the least loaded copy."""
        self._pick_idlest_host().start_run(stream)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as its backend can."""
        for host in self._hosts:
            host.abort(run_id)

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """End the process that has the run, and no other."""
        for host in self._hosts:
            host.kill_stuck_run(run_id, error)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Make a side call on the least loaded copy and return its result. Raises EngineError."""
        await self.ready()
        host = self._pick_idlest_host()
        if op not in PREFILL_CALLS:
            return await host.call(op, payload)
        self._prefill_calls[host] += 1
        try:
            return await host.call(op, payload)
        finally:
            self._prefill_calls[host] -= 1

    async def unload(self) -> None:
        """Unload all copies, in parallel; `ready` loads them again."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        self._starting = []
        await asyncio.gather(*(host.unload() for host in self._hosts))

    def revive(self) -> None:
        """Forget the failures of all copies."""
        for host in self._hosts:
            host.revive()

    def detach(self) -> None:
        """Let another event loop own the copies; nothing may be running."""
        for task in self._starting:
            task.cancel()
        self._starting = []
        self._changed = None
        for host in self._hosts:
            host.detach()

    async def close(self) -> None:
        """Close all copies in parallel, in the same limited time as one."""
        await asyncio.gather(*(host.close() for host in self._hosts))
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _loaded_hosts(self) -> list[Host]:
        return [host for host in self._hosts if host.loaded]

    def _pick_idlest_host(self) -> Host:
        def count_requests(host: Host) -> int:
            return host.running + self._prefill_calls[host]

        return min(self._loaded_hosts() or self._hosts, key=count_requests)

    def _combine_capabilities(self) -> Capabilities | None:
        """Return the capabilities of a copy with the slots of all loaded ones.

        None until a copy has been loaded.
        """
        optional = [host.capabilities for host in self._loaded_hosts() or self._hosts]
        capabilities = [each for each in optional if each is not None]
        if not capabilities:
            return None
        first = capabilities[0]
        # If no copy is loaded, the admitted requests wait for the first one that will be.
        slots = sum(each.slots for each in capabilities) if self.loaded else first.slots
        return replace(first, slots=slots)

    def _on_change(self) -> None:
        self.capabilities = self._combine_capabilities()
        if self._changed is not None:
            self._changed.set()
        for callback in self._callbacks:
            callback()

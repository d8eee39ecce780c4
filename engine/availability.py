"""Whether the engine's host can take a request now, and how long a request waits for it."""

from __future__ import annotations

import asyncio
import time

from engine.admission import Admission
from engine.capabilities import Capabilities
from engine.errors import EngineError, EngineRestarting
from engine.hosts.base import Host
from engine.request import Priority

# How long interactive requests wait for a restart, at least; or as long as two loads take.
SHORT_RESTART_S = 10.0


class Availability:
    """Follows the changes of a host, and lets requests wait for its model; owned by the event loop.

    After a crash, interactive requests wait for a short restart, and get EngineRestarting if it
    takes longer. Jobs and batches, which have queues of their own, wait until the model is loaded
    or cannot be.
    """

    def __init__(self, host: Host, admission: Admission) -> None:
        self._host = host
        self._admission = admission
        # Seconds without a loaded model in earlier periods, and when the current period began.
        self._unloaded_before_s = 0.0
        self._unloaded_since: float | None = time.monotonic()
        self._rejects_interactive = False
        # The timer that refuses interactive requests.
        self._rejection_timer: asyncio.TimerHandle | None = None
        # Done when the interactive requests that wait for the host are refused.
        self._rejection: asyncio.Future[None] | None = None
        self._has_failed = asyncio.Event()

    @property
    def rejects_interactive(self) -> bool:
        """Whether interactive requests get EngineRestarting, because a restart takes long."""
        return self._rejects_interactive

    @property
    def unloaded_s(self) -> float:
        """The total time without a loaded model, in seconds.

        The difference between two values is the time spent on loading between them, whatever else
        a request waited for.
        """
        since = self._unloaded_since
        return self._unloaded_before_s + (0.0 if since is None else time.monotonic() - since)

    def check(self, priority: Priority) -> None:
        """Raise EngineRestarting if requests of this priority do not wait for the restart."""
        if self._rejects_interactive and priority is Priority.INTERACTIVE:
            raise self._restarting_error()

    async def wait_loaded(self, priority: Priority) -> Capabilities:
        """Wait for the model; an interactive request waits only for a short restart.

        Raises EngineUnavailable.
        """
        host = self._host
        if host.loaded or host.failure is not None or priority is not Priority.INTERACTIVE:
            return await host.ready()
        self.check(priority)
        loop = asyncio.get_running_loop()
        rejection = self._rejection = self._rejection or loop.create_future()
        ready = asyncio.ensure_future(host.ready())
        try:
            await asyncio.wait({ready, rejection}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
        finally:
            ready.cancel()
        raise self._restarting_error()

    async def wait_until_dead(self) -> EngineError:
        """Wait until the host has failed or was closed, and return the reason."""
        while (failure := self._host.failure) is None:
            await self._has_failed.wait()
        return failure

    def on_revival(self) -> None:
        """Take requests again: the host that had failed is started once more."""
        self._has_failed.clear()

    def on_host_change(self) -> None:
        """Take the host's new state."""
        host = self._host
        if host.loaded and self._unloaded_since is not None:
            self._unloaded_before_s = self.unloaded_s
            self._unloaded_since = None
        elif not host.loaded and self._unloaded_since is None:
            self._unloaded_since = time.monotonic()
        self._update_rejection_timer()
        if host.failure is not None:
            self._has_failed.set()
            self._admission.fail_waiting(host.failure)
        elif host.capabilities is not None:
            self._admission.resize(host.capabilities.slots)

    def _update_rejection_timer(self) -> None:
        """Refuse interactive requests if a restart takes long, until the model is loaded."""
        downtime = self._host.downtime
        if downtime is None:
            self._rejects_interactive = False
            if self._rejection_timer is not None:
                self._rejection_timer.cancel()
                self._rejection_timer = None
        elif self._rejection_timer is None:
            max_wait_s = max(SHORT_RESTART_S, 2 * downtime.load_s)
            wait_s = max(downtime.since + max_wait_s - time.monotonic(), 0.0)
            self._rejection_timer = asyncio.get_running_loop().call_later(
                wait_s, self._reject_interactive
            )

    def _reject_interactive(self) -> None:
        self._rejects_interactive = True
        self._admission.fail_waiting(self._restarting_error(), Priority.INTERACTIVE)
        rejection, self._rejection = self._rejection, None
        if rejection is not None and not rejection.done():
            rejection.set_result(None)

    def _restarting_error(self) -> EngineRestarting:
        downtime = self._host.downtime
        if downtime is None:
            return EngineRestarting("the engine is being restarted", retry_after_s=1)
        return EngineRestarting(
            f"the engine is {downtime.sentence}", retry_after_s=downtime.retry_after_s
        )

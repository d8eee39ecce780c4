"""Process isolation: a crash or hang of the native library does not end the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from engine.backends.base import PREFILL_CALLS, SideCall, payload_prompt
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import EngineError, RequestRejected
from engine.hooks import Hooks
from engine.hosts.inflight import InflightRequests
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.losses.downtime import Downtime
from engine.hosts.process_state import ProcessState
from engine.hosts.process_supervisor import ProcessSupervisor
from engine.hosts.retirement import Retirement
from engine.runs.stream import TokenStream
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ProcessHost:
    """Runs requests in a child process with the backend in it, which its supervisor restarts.

    A segfault, an abort in C or a hang ends the requests running on it with EngineCrashed, and the
    next one waits for the restart.

    The process is also killed when a run does not stop after an abort, but only after a
    `Retirement`, in which the other runs get time to finish. Runs that do not finish in time, and
    runs that end because the abort of another run crashes the library, end with EngineReplaced:
    they are not the cause of the crash.

    Owned by the event loop; the one extra thread only collects what the child prints.
    """

    threaded = False

    def __init__(
        self,
        config: BackendConfig,
        timeouts: Timeouts,
        hooks: Hooks,
        crash_causes: CrashCauses | None = None,
    ) -> None:
        self._crash_causes = CrashCauses() if crash_causes is None else crash_causes
        self._timeouts = timeouts
        self._inflight = InflightRequests(self._send, self._retire)
        self._supervisor = ProcessSupervisor(
            config,
            timeouts,
            hooks,
            self._inflight,
            self._crash_causes,
            on_frame=self._on_frame,
            on_change=self._on_change,
        )
        self._retirement = Retirement(
            timeouts.neighbour_grace_s,
            self._inflight.__contains__,
            lambda: not self._inflight.has_healthy,
            self._supervisor.kill_and_restart,
            self._resume,
        )
        # Set whenever `ready` has to look again; made on the event loop that waits.
        self._changed: asyncio.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def failure(self) -> EngineError | None:
        """Why no process is started any more; None while there is one or will be."""
        return self._supervisor.failure

    @property
    def capabilities(self) -> Capabilities | None:
        """The capabilities of the backend; None until it has been loaded once."""
        return self._supervisor.capabilities

    @property
    def loaded(self) -> bool:
        """Whether a request would start now."""
        return self._supervisor.state is ProcessState.LOADED

    @property
    def restarts(self) -> int:
        """How often the process was restarted."""
        return self._supervisor.restarts

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._supervisor.pid

    @property
    def pids(self) -> Sequence[int]:
        """The child's process id, while there is one."""
        return () if self.pid is None else (self.pid,)

    @property
    def running(self) -> int:
        """How many runs are in flight on it."""
        return len(self._inflight)

    @property
    def downtime(self) -> Downtime | None:
        """Why there is no loaded model, if that began with a failure."""
        if self.failure is not None:
            return None
        retirement = self._retirement
        if retirement.error is not None:
            return Downtime(
                retirement.since,
                retirement.error.message,
                finishes_by=retirement.finishes_by,
                load_s=self._supervisor.losses.load_s,
            )
        return self._supervisor.losses.downtime

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def load_on_demand(self) -> None:
        """Make the errors of loads readable for clients, whose requests load the model."""
        self._supervisor.names_model = True

    def spawn(self) -> None:
        """Start the child, which loads the model; does nothing while there is a child."""
        self._supervisor.spawn()

    def abandon(self) -> None:
        """Kill the child at once; it must not have any requests.

        At the exit of the interpreter, in contrast, the child gets time to unload the model.
        """
        self._supervisor.kill()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises ModelLoadFailed, EngineDead or EngineClosed."""
        while True:
            if self.failure is not None:
                # All callers get the same exception object: its traceback must not grow with each.
                raise self.failure.with_traceback(None)
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            self._supervisor.start()
            if self.loaded and self.capabilities is not None:
                return self.capabilities
            await self._changed.wait()

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run, unless its request has crashed the process before."""
        try:
            self._crash_causes.check(stream.request)
        except RequestRejected as error:
            stream.end(None, error)
            return
        self._inflight.start_run(stream)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""
        if run_id in self._inflight:
            self._supervisor.send({"abort": run_id})
            self._retirement.check()

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Stop taking runs, and kill the child as soon as its other runs have ended."""
        if run_id in self._inflight:
            self._retire(error, run_id)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Make one of the backend's side calls and return its result. Raises EngineError."""
        await self.ready()
        self._crash_causes.check((op, payload))
        try:
            limit_s = self._timeouts.prefill_timeout_s
            if op in PREFILL_CALLS:
                limit_s = self._timeouts.prefill_limit_s(payload_prompt(payload))
            return await self._inflight.call(op, payload, limit_s)
        finally:
            # A retirement may have waited only for this call.
            self._retirement.check()

    async def close(self) -> None:
        """Let the child unload and exit; kill it if it does not in time."""
        await self._supervisor.close()

    async def unload(self) -> None:
        """Let the child unload and exit, or kill it; `ready` starts another one."""
        await self._supervisor.unload()

    def revive(self) -> None:
        """Forget the failure, the crashes and the failed loads; the child was unloaded."""
        self._supervisor.revive()

    def detach(self) -> None:
        """Let another event loop own the host; nothing may be running."""
        self._supervisor.detach()
        self._changed = None

    def _send(self, message: dict[str, Any]) -> None:
        self._supervisor.send(message)

    def _retire(self, error: EngineError, run_id: int | None = None) -> None:
        """Take no new runs, because of a stuck run, or without `run_id` of a stuck side call."""
        state = self._supervisor.state
        if state not in (ProcessState.STARTING, ProcessState.LOADED, ProcessState.RETIRING):
            return
        if self._retirement.begin(error, run_id):
            if self._inflight.has_healthy:
                logger.error(
                    "%s; the other requests get up to %g s (ENGINE_DRAIN_S) to finish before its "
                    "process is ended",
                    error.message,
                    self._timeouts.neighbour_grace_s,
                )
            self._supervisor.enter(ProcessState.RETIRING)
        self._retirement.check()

    def _resume(self) -> None:
        """Take new runs again, because the run that did not stop has ended after all."""
        logger.info("the engine has stopped the request after all, and goes on")
        self._supervisor.enter(ProcessState.LOADED)

    def _on_frame(self, frame: dict[str, Any]) -> None:
        self._inflight.handle_frame(frame)
        if self._retirement.error is not None:
            self._retirement.check()

    def _on_change(self) -> None:
        if self._supervisor.state is not ProcessState.RETIRING:
            self._retirement.stop()
        if self._changed is not None:
            self._changed.set()
        for callback in self._callbacks:
            callback()

"""Starts the engine's process, notices its end, and starts the next one."""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Callable
from typing import Any

from common.temporary_folders import ScratchFolder
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import (
    IS_TRANSIENT,
    EngineClosed,
    EngineDead,
    EngineError,
    EngineStalled,
    ModelLoadFailed,
    from_wire,
)
from engine.hooks import Hooks, HostLoaded
from engine.hosts import child_process
from engine.hosts.child_config import encode_config
from engine.hosts.child_connection import ChildConnection
from engine.hosts.child_process import EngineProcess
from engine.hosts.inflight import InflightRequests
from engine.hosts.load_failure import name_model
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.losses.loss_handler import LossHandler
from engine.hosts.output_tail import OutputTail
from engine.hosts.process_state import ProcessState, check_transition
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ProcessSupervisor:
    """Keeps a child process with the backend in it running, and restarts it when it dies.

    Restarts have growing pauses and go on until a model is loaded. `failure` is set, and no process
    is started any more, when the model cannot be loaded the first time, or when the engine had no
    loaded model for `Timeouts.down_limit_s` after a crash.

    `state` is what the process does; `on_change` is called after each change of it. Owned by the
    event loop, but `spawn`, `kill` and the exit of the interpreter need none.
    """

    def __init__(
        self,
        config: BackendConfig,
        timeouts: Timeouts,
        hooks: Hooks,
        inflight: InflightRequests,
        crash_causes: CrashCauses,
        *,
        on_frame: Callable[[dict[str, Any]], None],
        on_change: Callable[[], None],
    ) -> None:
        self._config = config
        self._timeouts = timeouts
        self._hooks = hooks
        self._inflight = inflight
        self._handle_frame = on_frame
        self._notify = on_change
        self.state = ProcessState.UNLOADED
        # Why it is in the state `FAILED` or `CLOSED`.
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.restarts = 0
        # Whether the errors of loads are for clients, and name the model instead of its paths.
        self.names_model = False
        self._process: EngineProcess | None = None
        self._connection: ChildConnection | None = None
        self._restart_task: asyncio.Task[None] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._output_tail = OutputTail()
        self.losses = LossHandler(
            config, timeouts.down_limit_s, hooks, inflight, crash_causes, self._output_tail
        )
        self._folder = ScratchFolder()
        self._folder.open()
        atexit.register(self._stop_at_exit)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    def enter(self, state: ProcessState) -> None:
        """Go to a state that may follow the current one, and notify."""
        self._set_state(state)
        self._notify()

    def _set_state(self, state: ProcessState) -> None:
        check_transition(self.state, state)
        self.state = state

    def spawn(self) -> None:
        """Start the child, which loads the model; does nothing unless it is unloaded.

        `start` repeats a start that the system refuses for lack of memory, descriptors or threads,
        with the same pauses as after a crash.
        """
        if self.state is ProcessState.UNLOADED:
            self._start_child()

    def start(self) -> None:
        """Start the child unless there is one or will be, and read it on this event loop."""
        self.spawn()
        if self.state is not ProcessState.DOWN:
            self._attach()

    def _start_child(self) -> None:
        """Start the child; the state stays as it is if the system refuses."""
        self.losses.start_error = None
        # Before it gives up, a run of the host's own shows whether the engine is to blame.
        try_run = self.losses.policy.is_last_start
        try:
            config, shared_files = encode_config(self._config, try_run=try_run)
            process = EngineProcess(config, self._folder.name, self._output_tail, shared_files)
        except ModelLoadFailed as error:
            self._fail_permanently(error)
        except (OSError, RuntimeError) as error:
            self.losses.start_error = error
        else:
            self._process = process
            self._connection = ChildConnection(
                process.socket, self._on_frame, self._on_disconnected
            )
            self._set_state(ProcessState.STARTING)

    def _attach(self) -> None:
        """Read the child's messages, or begin another start if the system refused the last one."""
        if self.state in (ProcessState.UNLOADED, ProcessState.DOWN):
            self._set_state(ProcessState.DOWN)
            self._begin_restart()
        elif self._connection is not None and self._connection.attach():
            self._stop_load_timer()
            if self.state is ProcessState.STARTING:
                self._load_timer = asyncio.get_running_loop().call_later(
                    self._timeouts.load_timeout_s, self._on_load_timeout
                )

    def _stop_load_timer(self) -> None:
        if self._load_timer is not None:
            self._load_timer.cancel()

    def _on_load_timeout(self) -> None:
        if self.state is ProcessState.STARTING:
            self.kill_and_restart(
                EngineStalled(
                    f"the model did not load within {self._timeouts.load_timeout_s:g} s "
                    "(LOAD_TIMEOUT_S)"
                )
            )

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the child; it is dropped if there is none."""
        if self._connection is not None:
            self._connection.send(message)

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if "finished" in frame:
            self.losses.policy.record_finished_run()
        self._handle_frame(frame)
        for message in frame.get("messages", ()):
            self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> None:
        match message:
            case {"loaded": wire} if self.state is ProcessState.STARTING:
                self._on_loaded(Capabilities(**wire), has_run=message.get("has_run", False))
            case {"load_failed": wire} if self.state is ProcessState.STARTING:
                self._on_load_failed(from_wire(wire))
            case {"answer": call_id, "result": result, "error": wire} if (
                self.state is not ProcessState.UNLOADING
            ):
                if wire is None:
                    self.losses.policy.reset()
                self._inflight.resolve_call(call_id, result, wire and from_wire(wire))

    def _on_loaded(self, capabilities: Capabilities, *, has_run: bool) -> None:
        self._stop_load_timer()
        self.capabilities = capabilities
        load_s = self._process.age_s if self._process else 0.0
        self.losses.record_load(load_s, has_run=has_run)
        self._set_state(ProcessState.LOADED)
        self._hooks(HostLoaded(load_s, self.restarts))
        self._notify()

    def _on_load_failed(self, error: EngineError) -> None:
        self._stop_load_timer()
        if self.names_model:
            logger.error("%s", error.message)
            error = name_model(error, self._config.options)
        is_transient = bool(error.details.pop(IS_TRANSIENT, False))
        if self.losses.policy.record_failed_load(is_transient=is_transient):
            self.kill_and_restart(error)
        else:
            self._fail_permanently(error)

    def kill(self) -> None:
        """Kill the child if there is one; its end is noticed as that of any other."""
        if self._process is not None:
            self._process.kill()

    def kill_and_restart(self, reason: EngineError) -> None:
        """Kill a child that does not work any more; another one takes its place."""
        self.losses.kill_reason = reason
        self.losses.begin_downtime(reason.message)
        self.enter(ProcessState.KILLED)
        self.kill()
        asyncio.get_running_loop().call_later(
            child_process.KILL_TIMEOUT_S, self._leave_behind, self._connection
        )

    def _leave_behind(self, connection: ChildConnection | None) -> None:
        """Treat a killed child as dead if it still holds its socket open."""
        is_current = self.state is ProcessState.KILLED and connection is self._connection
        if connection is not None and is_current:
            connection.close()
            self._on_disconnected()

    def _on_disconnected(self) -> None:
        if self.state is ProcessState.UNLOADING:
            return
        # `_restart` replaces this by the actual reason.
        self.losses.begin_downtime("the engine process has ended")
        if self.state not in (ProcessState.FAILED, ProcessState.CLOSED):
            self._set_state(ProcessState.DOWN)
        # Before its requests end: in a pool, the engine must learn first that their slots are gone.
        self._notify()
        if self.state is not ProcessState.CLOSED:
            self._begin_restart()

    def _begin_restart(self) -> None:
        """Describe the loss and end its requests; then start the next child unless it failed."""
        self._restart_task = asyncio.get_running_loop().create_task(self._restart())
        self._restart_task.add_done_callback(self._on_restart_ended)

    def _on_restart_ended(self, task: asyncio.Task[None]) -> None:
        """Declare the engine dead if the restart raised, so that no request waits for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the engine cannot be restarted", exc_info=error)
            if self.state not in (ProcessState.UNLOADING, ProcessState.CLOSED):
                self._fail_permanently(EngineDead(f"the engine cannot be restarted: {error}"))

    async def _restart(self) -> None:
        """Find out how the child died, end its requests, and start the next one after a pause."""
        loss = await self.losses.describe(self._process)
        self._process = None
        has_failed = self.state is ProcessState.FAILED
        fatal_error = self.losses.handle(loss, has_failed=has_failed)
        if has_failed:
            return
        if fatal_error is not None:
            self._fail_permanently(fatal_error)
            return
        self.restarts += 1
        # The time of the next start, which error messages name, is known only now.
        self._notify()
        await asyncio.sleep(self.losses.policy.pause_s)
        self.losses.end_pause()
        self._restart_task = None
        self._start_child()
        if self.state is not ProcessState.FAILED:
            self._attach()

    def _fail_permanently(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
        self.enter(ProcessState.FAILED)

    async def close(self) -> None:
        """Let the child unload and exit, or kill it; no other one is started."""
        if self.failure is None:
            self.failure = EngineClosed("the engine is shutting down")
        self._cancel_restart()
        self.enter(ProcessState.CLOSED)
        await self._end_process(EngineClosed("the engine was shut down"))
        self._folder.close()
        atexit.unregister(self._stop_at_exit)

    async def unload(self) -> None:
        """Let the child unload and exit, or kill it; `start` starts another one."""
        self._cancel_restart()
        if self.state is not ProcessState.CLOSED:
            self._set_state(ProcessState.UNLOADING)
        # A model that is not wanted is not down.
        self.losses.forget()
        self._notify()
        try:
            await self._end_process(EngineClosed("the model was unloaded"))
        finally:
            # It has ended, unless this task was cancelled.
            self.kill()
            if self._connection is not None:
                self._connection.close()
            self._process = self._connection = None
            if self.state is ProcessState.UNLOADING:
                has_failed = self.failure is not None
                self._set_state(ProcessState.FAILED if has_failed else ProcessState.UNLOADED)

    def revive(self) -> None:
        """Forget the failure, the crashes and the failed loads; the child was unloaded."""
        if self.state is ProcessState.FAILED:
            self.failure = None
            self._set_state(ProcessState.UNLOADED)
        self.losses.policy.forget_failures()

    def detach(self) -> None:
        """Let another event loop read the child, or start one at once instead of after a pause."""
        self._stop_load_timer()
        if self._restart_task is not None:
            self._cancel_restart()
            self.kill()
            self.losses.kill_reason = self._process = self._connection = None
            if self.state is ProcessState.DOWN:
                self._set_state(ProcessState.UNLOADED)
        elif self._connection is not None:
            self._connection.detach()

    def _cancel_restart(self) -> None:
        if self._restart_task is not None:
            self._restart_task.cancel()
            self._restart_task = None

    async def _end_process(self, error: EngineError) -> None:
        """End the child and fail the requests that are left on it."""
        process = self._process
        if process is not None:
            self._attach()
            self.send({"close": True})
            await asyncio.to_thread(
                process.end, self._timeouts.abort_grace_s, child_process.KILL_TIMEOUT_S
            )
        self._stop_load_timer()
        if self._connection is not None:
            self._connection.close()
        self._inflight.fail_all(error)

    def _stop_at_exit(self) -> None:
        """Shut down the socket, wait for the child to unload, then kill it.

        Runs at the exit of the interpreter, when there is no event loop.
        """
        if self._connection is not None:
            self._connection.shutdown()
        if self._process is not None:
            self._process.end(self._timeouts.abort_grace_s)

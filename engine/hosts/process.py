"""Process isolation: a crash or hang of the native library does not end the server."""

from __future__ import annotations

import asyncio
import atexit
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from common.temporary_folders import ScratchFolder
from engine.backends import open_shared_files
from engine.backends.base import PREFILL_CALLS, SideCall
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import (
    IS_TRANSIENT,
    EngineClosed,
    EngineCrashed,
    EngineDead,
    EngineError,
    EngineReplaced,
    EngineStalled,
    ModelLoadFailed,
    RequestRejected,
    from_wire,
)
from engine.hooks import Hooks, HostLoaded, HostLost
from engine.hosts import child_process, restart_policy
from engine.hosts.child_process import EngineProcess
from engine.hosts.crash_advice import crash_note
from engine.hosts.crash_causes import CrashCauses
from engine.hosts.downtime import Downtime
from engine.hosts.frame_socket import FrameSocket
from engine.hosts.frames import encode
from engine.hosts.inflight import InflightRequests
from engine.hosts.memory_limit import memory_note
from engine.hosts.output_tail import OutputTail
from engine.hosts.restart_policy import MAX_FIRST_CRASHES, MAX_LOAD_RETRIES, RestartPolicy
from engine.hosts.retirement import Retirement
from engine.stream import TokenStream
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ProcessHost:
    """Keeps a child process with the backend in it running, and restarts it when it dies.

    A segfault, an abort in C or a hang ends the requests running on it with EngineCrashed, and the
    next one waits for the restart. Restarts have growing pauses and go on until a model is loaded.
    `failure` is set, and no process is started any more, when the model cannot be loaded the first
    time, or when the engine had no loaded model for `Timeouts.down_limit_s` after a crash.

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
        self._config = config
        self._crash_causes = CrashCauses() if crash_causes is None else crash_causes
        self._timeouts = timeouts
        self._hooks = hooks
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.restarts = 0
        # Whether the model is one of several that are loaded for requests, whose clients get the
        # reason if it cannot be loaded.
        self.is_on_demand = False
        self._process: EngineProcess | None = None
        # The child's socket while no event loop reads from it.
        self._unattached_socket: socket.socket | None = None
        self._frame_socket: FrameSocket | None = None
        self.loaded = False
        self._changed: asyncio.Event | None = None
        self._inflight = InflightRequests(self._send, self._retire)
        self._restart_policy = RestartPolicy()
        self._failed_loads = 0
        # Whether a run has ended without a crash since this host started.
        self._has_finished_run = False
        # Why this host has killed the child.
        self._kill_reason: EngineError | None = None
        self._retirement = Retirement(
            timeouts.neighbour_grace_s,
            self._inflight.__contains__,
            lambda: not self._inflight.has_healthy,
            self._kill_and_restart,
            self._resume,
        )
        # Why the system refused the last start.
        self._start_error: OSError | RuntimeError | None = None
        self._downtime: Downtime | None = None
        self._load_s = 0.0
        self._output_tail = OutputTail()
        self._spawned_at = 0.0
        self._restart_task: asyncio.Task[None] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._is_unloading = False
        self._callbacks: list[Callable[[], None]] = []
        self._folder = ScratchFolder()
        self._folder.open()
        atexit.register(self._stop_at_exit)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    @property
    def pids(self) -> Sequence[int]:
        """The child's process id, while there is one."""
        return () if self._process is None else (self._process.pid,)

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
                load_s=self._load_s,
            )
        return self._downtime

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def spawn(self) -> None:
        """Start the child, which loads the model; does nothing while there is a child.

        `ready` repeats a start that the system refuses for lack of memory, descriptors or threads,
        with the same pauses as after a crash.
        """
        if self._process is not None or self.failure is not None:
            return
        shared_files = open_shared_files(self._config.backend, self._config.options)
        options = {**self._config.options, **shared_files}
        config = replace(self._config, options=options)
        # Before it gives up, a run of the host's own shows whether the engine is to blame.
        is_last_start = self._restart_policy.crashes_in_a_row == MAX_FIRST_CRASHES - 1
        try_run = is_last_start and not self._has_finished_run
        try:
            config_frame = encode(asdict(config) | {"try_run": try_run})
        except TypeError as error:
            self._fail_permanently(
                ModelLoadFailed(
                    "a path or name that was set for the engine cannot be passed on to its "
                    f"process, for it is not UTF-8: {error}"
                )
            )
            return
        self._start_error = None
        try:
            process = EngineProcess(
                config_frame,
                self._folder.name,
                self._output_tail,
                [each for files in shared_files.values() for each in files],
            )
        except (OSError, RuntimeError) as error:
            self._start_error = error
            return
        self._process = process
        self._unattached_socket = process.socket
        self.loaded = False
        self._spawned_at = time.monotonic()

    def abandon(self) -> None:
        """Kill the child at once; it must not have any requests.

        At the exit of the interpreter, in contrast, the child gets time to unload the model.
        """
        self._kill()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises ModelLoadFailed, EngineDead or EngineClosed."""
        while True:
            if self.failure is not None:
                # All callers get the same exception object: its traceback must not grow with each.
                raise self.failure.with_traceback(None)
            if self.loaded and self.capabilities is not None:
                if self._unattached_socket is not None:
                    # The model was loaded on another event loop.
                    self._attach()
                return self.capabilities
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            if self._restart_task is None:
                self._start_and_attach()
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
            self._send({"abort": run_id})
            self._retirement.check()

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Stop taking runs, and kill the child as soon as its other runs have ended."""
        if run_id in self._inflight:
            self._retire(error, run_id)

    def _retire(self, error: EngineError, run_id: int | None = None) -> None:
        if self._process is None or self._kill_reason is not None:
            return
        if self._retirement.begin(error, run_id):
            self.loaded = False
            if self._inflight.has_healthy:
                logger.error(
                    "%s; the other requests get up to %g s (ENGINE_DRAIN_S) to finish before its "
                    "process is ended",
                    error.message,
                    self._timeouts.neighbour_grace_s,
                )
            self._notify()
        self._retirement.check()

    def _resume(self) -> None:
        """Take new runs again, because the run that did not stop has ended after all."""
        logger.info("the engine has stopped the request after all, and goes on")
        self.loaded = True
        self._notify()

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Make one of the backend's side calls and return its result. Raises EngineError."""
        await self.ready()
        self._crash_causes.check((op, payload))
        try:
            limit_s = self._timeouts.prefill_timeout_s
            if op in PREFILL_CALLS:
                prompt = payload
                if op == "score":
                    prompt = payload[0]
                elif op == "rerank":
                    prompt = "".join(payload)
                limit_s = self._timeouts.prefill_limit_s(prompt)
            return await self._inflight.call(op, payload, limit_s)
        finally:
            # A retirement may have waited only for this call.
            self._retirement.check()

    async def close(self) -> None:
        """Let the child unload and exit; kill it if it does not in time."""
        self._is_closing = True
        self._fail_permanently(EngineClosed("the engine is shutting down"))
        self._retirement.stop()
        if self._restart_task is not None:
            self._restart_task.cancel()
        await self._end_process(EngineClosed("the engine was shut down"))
        self._folder.close()
        atexit.unregister(self._stop_at_exit)

    async def unload(self) -> None:
        """Let the child unload and exit, or kill it; `ready` starts another one."""
        self._is_unloading = True
        self.loaded = False
        self._retirement.stop()
        if self._restart_task is not None:
            self._restart_task.cancel()
            self._restart_task = None
        # A model that is not wanted is not down.
        self._downtime = None
        self._notify()
        try:
            await self._end_process(EngineClosed("the model was unloaded"))
            self._process = self._kill_reason = self._frame_socket = None
        finally:
            self._is_unloading = False

    def revive(self) -> None:
        """Forget the failure, the crashes and the failed loads; the child was unloaded."""
        self.failure = None
        self._failed_loads = 0
        self._restart_policy.reset()
        self._start_error = None

    async def _end_process(self, error: EngineError) -> None:
        """End the child and fail the requests that are left on it."""
        process = self._process
        if process is not None:
            self._attach()
            self._send({"close": True})
            try:
                await asyncio.to_thread(process.wait, self._timeouts.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, child_process.KILL_TIMEOUT_S)
        self._stop_load_timer()
        if self._frame_socket is not None:
            self._frame_socket.close()
        self._inflight.fail_all(error)

    def detach(self) -> None:
        """Let another event loop own the host; nothing may be running."""
        self._stop_load_timer()
        if self._restart_task is not None:
            # The next loop starts a child at once.
            self._restart_task.cancel()
            self._restart_task = None
            self._kill()
            self._process = self._kill_reason = None
        elif self._frame_socket is not None:
            self._unattached_socket = self._frame_socket.detach()
        self._frame_socket = None
        self._changed = None

    # -- the child's messages -------------------------------------------------------------------

    def _start_and_attach(self) -> None:
        """Start the child unless it is running, and read its messages."""
        self.spawn()
        self._attach()
        if self._start_error is not None and self._restart_task is None:
            self._begin_restart()

    def _attach(self) -> None:
        if self._unattached_socket is None:
            return
        self._frame_socket = FrameSocket(
            self._unattached_socket, self._on_frame, self._on_disconnected
        )
        self._unattached_socket = None
        self._stop_load_timer()
        if self.loaded:
            return
        self._load_timer = asyncio.get_running_loop().call_later(
            self._timeouts.load_timeout_s, self._on_load_timeout
        )

    def _on_frame(self, frame: dict[str, Any]) -> None:
        self._inflight.handle_frame(frame)
        if "finished" in frame:
            self._restart_policy.reset()
            self._has_finished_run = True
        if self._retirement.error is not None:
            self._retirement.check()
        for message in frame.get("messages", ()):
            self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> None:
        if self._is_unloading:
            return
        match message:
            case {"loaded": wire}:
                self._stop_load_timer()
                self.capabilities = Capabilities(**wire)
                self.loaded = True
                self._has_finished_run |= message.get("has_run", False)
                self._downtime = None
                self._load_s = time.monotonic() - self._spawned_at
                self._hooks(HostLoaded(self._load_s, self.restarts))
                self._notify()
            case {"load_failed": wire}:
                self._stop_load_timer()
                error = from_wire(wire)
                if self.is_on_demand:
                    error = self._name_model(error)
                is_transient = bool(error.details.pop(IS_TRANSIENT, False))
                self._failed_loads += 1
                # A model that has loaded before may load again: an NPU's memory is not free at
                # once. So may one that another program has kept from loading.
                can_repeat = is_transient and self._failed_loads <= MAX_LOAD_RETRIES
                if self.capabilities is None and not can_repeat:
                    self._fail_permanently(error)
                else:
                    self._kill_and_restart(error)
            case {"answer": call_id, "result": result, "error": wire}:
                if wire is None:
                    self._restart_policy.reset()
                self._inflight.resolve_call(call_id, result, wire and from_wire(wire))

    def _name_model(self, error: EngineError) -> EngineError:
        """Return an error for clients: it names the model, and files without their folders."""
        logger.error("%s", error.message)
        options, message = self._config.options, error.message
        for value in options.values():
            if isinstance(value, str | Path) and "/" in str(value):
                message = message.replace(str(value), Path(value).name)
        name = options.get("model_name")
        return type(error)(f"the model {name} cannot be loaded: {message}", **error.details)

    def _send(self, message: dict[str, Any]) -> None:
        if self._frame_socket is not None:
            self._frame_socket.send(message)

    # -- crashes and restarts -------------------------------------------------------------------

    def _stop_load_timer(self) -> None:
        if self._load_timer is not None:
            self._load_timer.cancel()

    def _on_load_timeout(self) -> None:
        if not self.loaded:
            self._kill_and_restart(
                EngineStalled(
                    f"the model did not load within {self._timeouts.load_timeout_s:g} s "
                    "(LOAD_TIMEOUT_S)"
                )
            )

    def _on_disconnected(self) -> None:
        self.loaded = False
        if self._is_unloading:
            return
        # `_restart` replaces this by the actual reason.
        self._begin_downtime("the engine process has ended")
        # Before its requests end: in a pool, the engine must learn first that their slots are gone.
        self._notify()
        if not self._is_closing and self._restart_task is None:
            self._begin_restart()

    def _begin_downtime(self, reason: str) -> None:
        """Start a downtime unless there is one, or the model was never loaded."""
        if self._downtime is None and self.capabilities is not None:
            self._downtime = Downtime(time.monotonic(), reason, load_s=self._load_s)

    def _begin_restart(self) -> None:
        self._restart_task = asyncio.get_running_loop().create_task(self._restart())
        self._restart_task.add_done_callback(self._on_restart_ended)

    def _on_restart_ended(self, task: asyncio.Task[None]) -> None:
        """Declare the engine dead if the restart raised, so that no request waits for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the engine cannot be restarted", exc_info=error)
            self._fail_permanently(EngineDead(f"the engine cannot be restarted: {error}"))

    async def _restart(self) -> None:
        """Find out how the child died, end its requests, and start the next one after a pause."""
        reason, lived_s = await self._describe_loss()
        aborted = self._inflight.aborted_runs
        # An abort may crash the library or have no effect: that is no sign of a broken engine. A
        # run that was aborted by a timeout had stalled before, which is.
        counts = not aborted or any(isinstance(each.error, EngineStalled) for each in aborted)
        if counts:
            self._restart_policy.record_crash(lived_s)
        ended_by_other = bool(aborted) or self._kill_reason is not None
        if not ended_by_other and self._process is not None and self._process.has_crashed:
            self._crash_causes.record(self._inflight.running, reason)
        self._kill_reason = self._process = None
        self._retirement.stop()
        since = self._downtime.since if self._downtime else time.monotonic()
        fatal_error = self._find_fatal_error(reason, time.monotonic() - since)
        crashes, pause_s = self._restart_policy.crashes_in_a_row, self._restart_policy.pause_s
        if self.capabilities is None and self._failed_loads:
            pause_s = max(pause_s, restart_policy.LOAD_RETRY_PAUSE_S)
        self._downtime = Downtime(
            since,
            reason,
            crashes=crashes,
            next_start=time.monotonic() + pause_s,
            load_s=self._load_s,
        )
        self._inflight.fail_all(
            EngineReplaced(f"{reason} while the request was running beside another one")
            if ended_by_other
            else EngineCrashed(f"{reason} while the request was running on it")
        )
        self._hooks(HostLost(reason, fatal_error is not None))
        if self.failure is not None:
            return
        if fatal_error is not None:
            logger.error("%s", fatal_error.message)
            self._fail_permanently(fatal_error)
            return
        logger.error(
            "%s%s; restarting in %.1f s, at %s; its last output: %s",
            reason,
            f" (crash {crashes} in a row)" if counts else "",
            pause_s,
            time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s)),
            self._output_tail.joined(),
        )
        self.restarts += 1
        # The time of the next start, which error messages name, is known only now.
        self._notify()
        await asyncio.sleep(pause_s)
        self._downtime = replace(self._downtime, next_start=None)
        self._restart_task = None
        self._start_and_attach()

    async def _describe_loss(self) -> tuple[str, float]:
        """Return why there is no child any more, and how long it lived; 0 s if it was killed."""
        if self._start_error is not None:
            return f"the engine process cannot be started: {self._start_error}", 0.0
        process = self._process
        if process is None:
            exit_description, exit_code = "the engine process is gone", None
        else:
            exit_description, exit_code = await process.wait_for_exit(), process.returncode
        reason = self._kill_reason.message if self._kill_reason else exit_description
        reason += memory_note(exit_code, self._output_tail.lines(), self._config.memory_mb)
        if self.capabilities is None:
            reason += crash_note(exit_code, self._config.backend)
        return reason, 0.0 if self._kill_reason else time.monotonic() - self._spawned_at

    def _find_fatal_error(self, reason: str, down_s: float) -> EngineError | None:
        """Return why the child is not started any more; None if it will be."""
        count = self._restart_policy.crashes_in_a_row
        last_line = self._output_tail.last_line()
        if not self._has_finished_run and self._start_error is None and count >= MAX_FIRST_CRASHES:
            when = (
                "while it loaded the model for the first time"
                if self.capabilities is None
                else "and has not finished one request since its start"
            )
            return EngineDead(
                f"the engine crashed {count} times in a row {when}, and is not started again: "
                f"{reason}; last output: {last_line}"
            )
        if down_s < self._timeouts.down_limit_s:
            return None
        return EngineDead(
            f"the engine could not be started again within {self._timeouts.down_limit_s:g} s "
            f"(ENGINE_DOWN_EXIT_S), after {count} crashes in a row: {reason}; "
            f"last output: {last_line}"
        )

    def _fail_permanently(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
        for callback in self._callbacks:
            callback()

    def _stop_at_exit(self) -> None:
        """Shut down the socket, wait for the child to unload, then kill it.

        Runs at the exit of the interpreter, when there is no event loop.
        """
        if self._frame_socket is not None:
            self._frame_socket.shutdown()
        if self._unattached_socket is not None:
            self._unattached_socket.close()
        if self._process is not None:
            try:
                self._process.wait(self._timeouts.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()

    def _kill_and_restart(self, reason: EngineError) -> None:
        """Kill a child that does not work any more; another one takes its place."""
        self._kill_reason = reason
        # Stop sending requests to it until its end is noticed.
        self.loaded = False
        self._begin_downtime(reason.message)
        self._notify()
        self._kill()
        asyncio.get_running_loop().call_later(
            child_process.KILL_TIMEOUT_S, self._leave_behind, self._frame_socket
        )

    def _leave_behind(self, frame_socket: FrameSocket | None) -> None:
        """Treat a killed child as dead if it still holds its socket open."""
        is_current = frame_socket is self._frame_socket and self._restart_task is None
        if frame_socket is not None and is_current:
            frame_socket.close()
            self._on_disconnected()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

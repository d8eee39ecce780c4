"""Process isolation: the server survives whatever a native library does."""

from __future__ import annotations

import asyncio
import atexit
import logging
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import (
    EngineClosed,
    EngineCrashed,
    EngineDead,
    EngineError,
    EngineReplaced,
    EngineStalled,
    ModelLoadFailed,
    from_wire,
)
from engine.hooks import Hooks, HostLoaded, HostLost
from engine.hosts.child_process import describe_exit, start_process
from engine.hosts.downtime import Downtime
from engine.hosts.frame_socket import FrameSocket
from engine.hosts.frames import encode
from engine.hosts.inflight import InflightRequests
from engine.hosts.memory_limit import memory_note
from engine.hosts.output_tail import OutputTail
from engine.hosts.restart_policy import MAX_FIRST_CRASHES, RestartPolicy
from engine.hosts.retirement import Retirement
from engine.stream import TokenStream
from engine.temporary_folders import ScratchFolder
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)

# A child that has closed its socket gets so long to die of what made it do so.
_DEATH_S = 1.0
_DEATH_POLL_S = 0.01
# How long to wait for the last lines of a process that has ended. They are in the pipe already, but
# a process that it started may keep the pipe open.
_LAST_WORDS_TIMEOUT_S = 0.5
# A child that is stuck in a driver does not even die of SIGKILL: it is left behind after so long.
_KILL_TIMEOUT_S = 30.0


class ProcessHost:
    """Keeps a child process with the backend in it running, and restarts it when it dies.

    A segfault, an abort in C or a hang ends the requests running on it with EngineCrashed, and the
    next one waits for the restart. Restarts have growing pauses and go on until a model is loaded.
    `failure` is set, and no process is started any more, when the model cannot be loaded the first
    time, or when the engine had no loaded model for `Timeouts.down_limit_s` after a crash.

    The process is also killed when a run does not stop after an abort, but only after a
    `Retirement`, in which the other runs get time to finish. Runs that do not finish in time, and
    runs beside an aborted one that crashes the library, end with EngineReplaced, because they did
    not end the process.

    Owned by the event loop; the one extra thread only collects what the child prints.
    """

    threaded = False

    def __init__(self, config: BackendConfig, timeouts: Timeouts, hooks: Hooks) -> None:
        self._config = config
        self._timeouts = timeouts
        self._hooks = hooks
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._frame_socket: FrameSocket | None = None
        self.loaded = False
        self._changed: asyncio.Event | None = None
        self._inflight = InflightRequests(self._send, self._retire)
        self._restart_policy = RestartPolicy()
        # Why this side has killed the child.
        self._reason: EngineError | None = None
        self._retirement = Retirement(
            timeouts.neighbour_grace_s,
            self._inflight.__contains__,
            lambda: not self._inflight.has_healthy,
            self._give_up,
            self._resume,
        )
        # Why the last start was refused by the system.
        self._start_error: OSError | RuntimeError | None = None
        self._lost: Downtime | None = None
        self._load_s = 0.0
        self._output_tail = OutputTail()
        self._spawned_at = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._callbacks: list[Callable[[], None]] = []
        self._folder = ScratchFolder()
        self._folder.open()
        atexit.register(self._part)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> int:
        """How many runs are under way on it."""
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
        return self._lost

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def spawn(self) -> None:
        """Start the child and have it load; harmless while there is one.

        A start that the system refuses, for lack of memory, descriptors or threads, is repeated by
        `ready`, with the pauses of a crash.
        """
        if self._process is not None or self.failure is not None:
            return
        try:
            config = encode(asdict(self._config))
        except TypeError as error:
            self._fail_for_good(
                ModelLoadFailed(
                    "a path or name that was set for the engine cannot be passed on to its "
                    f"process, for it is not UTF-8: {error}"
                )
            )
            return
        self._start_error = None
        try:
            self._start(config)
        except (OSError, RuntimeError) as error:
            # RuntimeError: no thread can be started for what the child prints.
            self._start_error = error
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _start(self, config: bytes) -> None:
        """Start the child and send it its configuration. Raises OSError or RuntimeError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = process = start_process(
                    "engine.hosts.child",
                    str(theirs.fileno()),
                    folder=self._folder.name,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            assert process.stdout is not None  # noqa: S101 - opened as a pipe above
            self._output_tail.listen(process.stdout)
        except BaseException:
            ours.close()
            raise
        self._sock = ours
        self.loaded = False
        self._spawned_at = time.monotonic()
        # A child that has died by now is found out by whoever reads from it.
        with suppress(OSError):
            ours.sendall(config)

    def abandon(self) -> None:
        """Kill the child at once; nothing was asked of it.

        Unlike at the interpreter's end, where it gets time to unload what it may still be loading.
        """
        self._kill()

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises ModelLoadFailed, EngineDead or EngineClosed."""
        while True:
            if self.failure is not None:
                # The same error for everyone who asks: its traceback must not grow with each.
                raise self.failure.with_traceback(None)
            if self.loaded and self.capabilities is not None:
                if self._sock is not None:
                    # It was loaded on another loop.
                    self._attach()
                return self.capabilities
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            if self._restarting is None:
                self._begin()
            await self._changed.wait()

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run."""
        self._inflight.start_run(stream)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""
        if run_id in self._inflight:
            self._send({"abort": run_id})
            self._retirement.check()

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Take no more runs and kill the child as soon as its other runs have ended."""
        if run_id in self._inflight:
            self._retire(error, run_id)

    def _retire(self, error: EngineError, run_id: int | None = None) -> None:
        if self._process is None or self._reason is not None:
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
        """Ask one of the backend's side calls. Raises EngineError."""
        await self.ready()
        try:
            return await self._inflight.call(op, payload, self._timeouts.prefill_timeout_s)
        finally:
            # It may have been the last one that the process was kept for.
            self._retirement.check()

    async def close(self) -> None:
        """Have the child unload and leave; kill it when it does not."""
        self._closing = True
        self._fail_for_good(EngineClosed("the engine is shutting down"))
        self._retirement.stop()
        if self._restarting is not None:
            self._restarting.cancel()
        process = self._process
        if process is not None:
            self._attach()
            self._send({"close": True})
            try:
                await asyncio.to_thread(process.wait, self._timeouts.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, _KILL_TIMEOUT_S)
        self._stop_load_timer()
        if self._frame_socket is not None:
            self._frame_socket.close()
        self._inflight.fail_all(EngineClosed("the engine was shut down"))
        self._folder.close()
        atexit.unregister(self._part)

    def detach(self) -> None:
        """Let another event loop own the host, which serves nothing at the moment."""
        self._stop_load_timer()
        if self._restarting is not None:
            # The next loop starts a child at once.
            self._restarting.cancel()
            self._restarting = None
            self._kill()
            self._process = self._reason = None
        elif self._frame_socket is not None:
            self._sock = self._frame_socket.detach()
        self._frame_socket = None
        self._changed = None

    # -- the child's messages -------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the child, if there is none, and listen to it."""
        self.spawn()
        self._attach()
        if self._start_error is not None and self._restarting is None:
            self._begin_restart()

    def _attach(self) -> None:
        if self._sock is None:
            return
        self._frame_socket = FrameSocket(self._sock, self._on_message, self._on_lost)
        self._sock = None
        self._stop_load_timer()
        if self.loaded:
            return
        self._load_timer = asyncio.get_running_loop().call_later(
            self._timeouts.load_timeout_s, self._on_load_timeout
        )

    def _on_message(self, frame: dict[str, Any]) -> None:
        self._inflight.handle_frame(frame)
        if "finished" in frame:
            self._restart_policy.reset()
        if self._retirement.error is not None:
            self._retirement.check()
        for message in frame.get("messages", ()):
            self._on_other(message)

    def _on_other(self, message: dict[str, Any]) -> None:
        match message:
            case {"loaded": wire}:
                self._stop_load_timer()
                self.capabilities = Capabilities(**wire)
                self.loaded = True
                self._lost = None
                self._load_s = time.monotonic() - self._spawned_at
                self._hooks(HostLoaded(self._load_s, self.restarts))
                self._notify()
            case {"load_failed": wire}:
                self._stop_load_timer()
                if self.capabilities is None:
                    self._fail_for_good(from_wire(wire))
                else:
                    # It did load, so it may again: an NPU's memory is not free at once.
                    self._give_up(from_wire(wire))
            case {"answer": call_id, "result": result, "error": wire}:
                if wire is None:
                    self._restart_policy.reset()
                self._inflight.resolve_call(call_id, result, wire and from_wire(wire))

    def _send(self, message: dict[str, Any]) -> None:
        if self._frame_socket is not None:
            self._frame_socket.send(message)

    # -- life and death -------------------------------------------------------------------------

    def _stop_load_timer(self) -> None:
        if self._load_timer is not None:
            self._load_timer.cancel()

    def _on_load_timeout(self) -> None:
        if not self.loaded:
            self._give_up(
                EngineStalled(
                    f"the model did not load within {self._timeouts.load_timeout_s:g} s "
                    "(LOAD_TIMEOUT_S)"
                )
            )

    def _on_lost(self) -> None:
        self.loaded = False
        # How it died is found out in a moment.
        self._begin_downtime("the engine process has ended")
        # Before its requests end: their slots are gone with it where there are other hosts.
        self._notify()
        if not self._closing and self._restarting is None:
            self._begin_restart()

    def _begin_downtime(self, reason: str) -> None:
        """Start a downtime unless there is one, or the model was never loaded."""
        if self._lost is None and self.capabilities is not None:
            self._lost = Downtime(time.monotonic(), reason, load_s=self._load_s)

    def _begin_restart(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self._restart())
        self._restarting.add_done_callback(self._on_restart_ended)

    def _on_restart_ended(self, task: asyncio.Task[None]) -> None:
        """Declare the engine dead if the restart raised, so that no request waits for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the engine cannot be restarted", exc_info=error)
            self._fail_for_good(EngineDead(f"the engine cannot be restarted: {error}"))

    async def _restart(self) -> None:
        """Find out how the child died, end its requests, and start the next one after a pause."""
        if self._start_error is not None:
            reason, lived_s = f"the engine process cannot be started: {self._start_error}", 0.0
        else:
            death_of_child = await self._death()
            reason = self._reason.message if self._reason else death_of_child
            exit_code = self._process.poll() if self._process else None
            reason += memory_note(exit_code, self._output_tail.lines(), self._config.memory_mb)
            lived_s = 0.0 if self._reason else time.monotonic() - self._spawned_at
        aborted = self._inflight.aborted
        # An abort may crash the library, or not be heeded: that says nothing about the engine.
        # A run that a clock has aborted had stalled before, which does.
        counts = not aborted or any(isinstance(each.error, EngineStalled) for each in aborted)
        if counts:
            self._restart_policy.record_crash(lived_s)
        ended_by_other = bool(aborted) or self._reason is not None
        self._reason = self._process = None
        self._retirement.stop()
        since = self._lost.since if self._lost else time.monotonic()
        failure = self._past_helping(reason, time.monotonic() - since)
        pause_s = self._restart_policy.pause_s
        self._lost = Downtime(
            since,
            reason,
            crashes=self._restart_policy.in_a_row,
            next_start=time.monotonic() + pause_s,
            load_s=self._load_s,
        )
        self._inflight.fail_all(
            EngineReplaced(f"{reason} while the request was running beside another one")
            if ended_by_other
            else EngineCrashed(f"{reason} while the request was running on it")
        )
        self._hooks(HostLost(reason, failure is not None))
        if self.failure is not None:
            return
        if failure is not None:
            logger.error("%s", failure.message)
            self._fail_for_good(failure)
            return
        logger.error(
            "%s%s; restarting in %.1f s, at %s; its last words: %s",
            reason,
            f" (crash {self._restart_policy.in_a_row} in a row)" if counts else "",
            pause_s,
            time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s)),
            self._output_tail.all(),
        )
        self.restarts += 1
        # Those who wait can be told now when that will be.
        self._notify()
        await asyncio.sleep(pause_s)
        self._lost = replace(self._lost, next_start=None)
        self._restarting = None
        self._begin()

    async def _death(self) -> str:
        """Return how the child died, after killing it if it has only closed its socket.

        Its last lines have been read then.
        """
        process = self._process
        if process is None:
            return "the engine process is gone"
        kill_at = time.monotonic() + _DEATH_S
        leave_at = kill_at + _KILL_TIMEOUT_S
        # Not in a thread: a machine in trouble may have none to give.
        while (code := process.poll()) is None:
            now = time.monotonic()
            if now > leave_at:
                return f"the engine process {process.pid} did not end, even by SIGKILL"
            if now > kill_at:
                self._kill()
            await asyncio.sleep(_DEATH_POLL_S)
        leave_at = time.monotonic() + _LAST_WORDS_TIMEOUT_S
        while not self._output_tail.is_complete:
            if time.monotonic() > leave_at:
                break
            await asyncio.sleep(_DEATH_POLL_S)
        return f"the engine process {describe_exit(code)}"

    def _past_helping(self, reason: str, down_s: float) -> EngineError | None:
        """Return why there will be no other start, if that is so."""
        count = self._restart_policy.in_a_row
        last_words = self._output_tail.last()
        if self.capabilities is None and self._start_error is None and count >= MAX_FIRST_CRASHES:
            return EngineDead(
                f"the engine crashed {count} times in a row while it loaded the model for the "
                f"first time, and is not started again: {reason}; last words: {last_words}"
            )
        if down_s < self._timeouts.down_limit_s:
            return None
        return EngineDead(
            f"the engine could not be started again within {self._timeouts.down_limit_s:g} s "
            f"(ENGINE_DOWN_EXIT_S), after {count} crashes in a row: {reason}; "
            f"last words: {last_words}"
        )

    def _fail_for_good(self, error: EngineError) -> None:
        if self.failure is None:
            self.failure = error
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
        for callback in self._callbacks:
            callback()

    def _part(self) -> None:
        """At the interpreter's end, without a loop: hang up, wait for the child to unload, kill."""
        if self._frame_socket is not None:
            self._frame_socket.hang_up()
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(self._timeouts.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()

    def _give_up(self, reason: EngineError) -> None:
        """Kill a child that is of no use any more; another one takes its place."""
        self._reason = reason
        # Until its end is noticed nothing more is to be asked of it.
        self.loaded = False
        self._begin_downtime(reason.message)
        self._notify()
        self._kill()
        asyncio.get_running_loop().call_later(
            _KILL_TIMEOUT_S, self._leave_behind, self._frame_socket
        )

    def _leave_behind(self, link: FrameSocket | None) -> None:
        """Take a child that was killed for dead if it still holds its socket open."""
        if link is not None and link is self._frame_socket and self._restarting is None:
            link.close()
            self._on_lost()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

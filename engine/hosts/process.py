"""Process isolation: whatever a native library does, the server survives it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.clocks import Clocks
from engine.config import BackendConfig
from engine.errors import (
    EngineClosed,
    EngineCrashed,
    EngineDead,
    EngineError,
    EngineStalled,
    ModelLoadFailed,
    from_wire,
)
from engine.hooks import Hooks, HostLoaded, HostLost
from engine.hosts.crashes import Crashes
from engine.hosts.frames import encode
from engine.hosts.last_words import LastWords
from engine.hosts.link import Link
from engine.hosts.spawning import death, new_folder, start
from engine.hosts.underway import Underway
from engine.stream import TokenStream

logger = logging.getLogger(__name__)


class ProcessHost:
    """Keeps a child process with the backend in it running, and restarts it when it dies.

    A segfault, an abort in C, a hang or a deaf run costs the requests running on it, never the
    server: they end with EngineCrashed, the next one waits for the restart. After too many
    `Crashes` in a row `failure` is EngineDead with the child's last words. Owned by the event loop;
    the one extra thread only collects what the child prints.
    """

    threaded = False

    def __init__(self, config: BackendConfig, clocks: Clocks, hooks: Hooks) -> None:
        self._config = config
        self._clocks = clocks
        self._hooks = hooks
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._link: Link | None = None
        self.loaded = False
        self._changed: asyncio.Event | None = None
        self._underway = Underway(self._send, self._give_up)
        self._crashes = Crashes()
        self._reason: EngineError | None = None
        self._last_words = LastWords()
        self._spawned_at = 0.0
        self._burial: asyncio.Task[None] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._callbacks: list[Callable[[], None]] = []
        self._folder = new_folder()
        atexit.register(self._part)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> int:
        """How many runs are under way on it."""
        return len(self._underway)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def spawn(self) -> None:
        """Start the child and have it load; harmless while there is one."""
        if self._process is not None or self.failure is not None:
            return
        try:
            told = encode({"backend": self._config.backend, "options": self._config.options})
        except TypeError as error:
            self._fail_for_good(
                ModelLoadFailed(
                    "a path or name that was set for the engine cannot be passed on to its "
                    f"process, for it is not UTF-8: {error}"
                )
            )
            return
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = process = start(
                    "engine.hosts.child",
                    str(theirs.fileno()),
                    folder=self._folder.name,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            ours.close()
            self._fail_for_good(EngineDead(f"the engine process cannot be started: {error}"))
            return
        assert process.stdout is not None  # noqa: S101 - opened as a pipe above
        self._last_words.listen(process.stdout)
        self._sock = ours
        self.loaded = False
        self._spawned_at = time.monotonic()
        # A child that has died by now is found out by whoever reads from it.
        with suppress(OSError):
            ours.sendall(told)

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
                return self.capabilities
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            if self._burial is None:
                self.spawn()
                self._attach()
            await self._changed.wait()

    def run(self, stream: TokenStream) -> None:
        """Start the stream's run."""
        self._underway.run(stream)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""
        if run_id in self._underway:
            self._send({"abort": run_id})

    def wedged(self, run_id: int, error: EngineError) -> None:
        """Kill the child: it holds a run that cannot be ended otherwise."""
        if run_id in self._underway:
            self._give_up(error)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Ask one of the backend's side calls. Raises EngineError."""
        await self.ready()
        return await self._underway.call(op, payload, self._clocks.prefill_timeout_s)

    async def close(self) -> None:
        """Have the child unload and leave; kill it when it does not."""
        self._closing = True
        self._fail_for_good(EngineClosed("the engine is shutting down"))
        if self._burial is not None:
            self._burial.cancel()
        process = self._process
        if process is not None:
            self._attach()
            self._send({"close": True})
            try:
                await asyncio.to_thread(process.wait, self._clocks.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()
                await asyncio.to_thread(process.wait)
        self._stop_load_timer()
        if self._link is not None:
            self._link.close()
        self._underway.end(EngineClosed("the engine was shut down"))
        self._folder.cleanup()
        atexit.unregister(self._part)

    # -- the child's messages -------------------------------------------------------------------

    def _attach(self) -> None:
        if self._sock is None:
            return
        self._link = Link(self._sock, self._on_message, self._on_lost)
        self._sock = None
        self._stop_load_timer()
        self._load_timer = asyncio.get_running_loop().call_later(
            self._clocks.load_timeout_s, self._on_load_timeout
        )

    def _on_message(self, frame: dict[str, Any]) -> None:
        self._underway.take(frame)
        if "finished" in frame:
            self._crashes.answered()
        for message in frame.get("messages", ()):
            self._on_other(message)

    def _on_other(self, message: dict[str, Any]) -> None:
        match message:
            case {"loaded": wire}:
                self._stop_load_timer()
                self.capabilities = Capabilities(**wire)
                self.loaded = True
                self._hooks(HostLoaded(time.monotonic() - self._spawned_at, self.restarts))
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
                    self._crashes.answered()
                self._underway.answer(call_id, result, wire and from_wire(wire))

    def _send(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.send(message)

    # -- life and death -------------------------------------------------------------------------

    def _stop_load_timer(self) -> None:
        if self._load_timer is not None:
            self._load_timer.cancel()

    def _on_load_timeout(self) -> None:
        if not self.loaded:
            self._give_up(
                EngineStalled(
                    f"the model did not load within {self._clocks.load_timeout_s:g} s "
                    "(LOAD_TIMEOUT_S)"
                )
            )

    def _on_lost(self) -> None:
        self.loaded = False
        # Before its requests end: their slots are gone with it where there are other hosts.
        self._notify()
        if not self._closing and self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(self._bury())

    async def _bury(self) -> None:
        """Find out how the child died, tell its requests, and start the next one after a pause."""
        process = self._process
        if process is None:
            return
        try:
            # A child that only closed its socket gets a moment to die of what made it do so.
            code = await asyncio.to_thread(process.wait, 1.0)
        except subprocess.TimeoutExpired:
            self._kill()
            code = await asyncio.to_thread(process.wait)
        self._crashes.add(0.0 if self._reason else time.monotonic() - self._spawned_at)
        reason = self._reason.message if self._reason else f"the engine process {death(code)}"
        self._reason = None
        self._process = None
        logger.error("%s; its last words: %s", reason, self._last_words.all())
        self._underway.end(EngineCrashed(f"{reason} while the request was running on it"))
        dead = self._crashes.too_many
        self._hooks(HostLost(reason, dead))
        if self.failure is not None:
            return
        if dead:
            self._fail_for_good(
                EngineDead(
                    f"the engine crashed {self._crashes.in_a_row} times in a row and was given up: "
                    f"{reason}; last words: {self._last_words.last()}"
                )
            )
            return
        self.restarts += 1
        await asyncio.sleep(self._crashes.pause_s)
        self._burial = None
        self.spawn()
        self._attach()

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
        if self._link is not None:
            self._link.hang_up()
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(self._clocks.abort_grace_s)
            except subprocess.TimeoutExpired:
                self._kill()

    def _give_up(self, reason: EngineError) -> None:
        """End a child that is of no use any more; another one takes its place."""
        self._reason = reason
        # Until it is buried nothing more is to be asked of it.
        self.loaded = False
        self._notify()
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

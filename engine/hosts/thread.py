"""Thread isolation: the backend in this very process, for hardened libraries and for profiling."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from engine.backends import build
from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import EngineClosed, EngineDead, EngineError, ModelLoadFailed
from engine.hooks import Hooks, HostLoaded, HostLost
from engine.hosts.child_process import thread_wait_env
from engine.hosts.downtime import Downtime
from engine.hosts.retirement import Retirement
from engine.output import Delta, Finish
from engine.runner import Runner
from engine.stream import TokenStream
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ThreadHost:
    """Runs the backend on threads of this process.

    It saves a process and a socket and survives nothing: a crash takes the server along, and a
    wedged run cannot be ended, so the engine is EngineDead when the other runs have ended or have
    had their time. Owned by the event loop; the
    runner's threads reach it only through `TokenStream.feed` and `call_soon_threadsafe`.
    """

    threaded = True

    def __init__(self, config: BackendConfig, timeouts: Timeouts, hooks: Hooks) -> None:
        self._config = config
        self._timeouts = timeouts
        self._hooks = hooks
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.loaded = False
        self.restarts = 0
        self._runner: Runner | None = None
        self._loading: asyncio.Task[None] | None = None
        self._streams: dict[int, TokenStream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # Set when a retirement is over.
        self._changed: asyncio.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._retirement = Retirement(
            timeouts.neighbour_grace_s,
            self._streams.__contains__,
            lambda: all(each.aborted for each in self._streams.values()),
            self._give_up,
            self._resume,
        )

    @property
    def downtime(self) -> Downtime | None:
        """Why it takes no runs, while the last ones get time to end beside a wedged one."""
        retirement = self._retirement
        if self.failure is not None or retirement.error is None:
            return None
        return Downtime(
            retirement.since, retirement.error.message, finishes_by=retirement.finishes_by
        )

    @property
    def running(self) -> int:
        """How many runs are under way on it."""
        return len(self._streams)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def spawn(self) -> None:
        """Do nothing: without a process of its own there is nothing to begin before the loop."""

    def abandon(self) -> None:
        """Do nothing: `spawn` has started nothing."""

    async def ready(self) -> Capabilities:
        """Load on the first call, wait for it on the others. Raises ModelLoadFailed."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._loading is None:
            self._loading = self._loop.create_task(self._load())
        if self.capabilities is None and self.failure is None:
            await asyncio.shield(self._loading)
        while self._retirement.error is not None:
            self._changed = self._changed or asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self.failure is not None:
            # The same error for everyone who asks: its traceback must not grow with each.
            raise self.failure.with_traceback(None)
        assert self.capabilities is not None  # noqa: S101 - loaded without a failure
        return self.capabilities

    async def _load(self) -> None:
        os.environ |= thread_wait_env(os.environ)
        started = asyncio.get_running_loop().time()
        handlers = _signal_handlers()
        try:
            runner = Runner(build(self._config.backend, self._config.options), self)
            async with asyncio.timeout(self._timeouts.load_timeout_s):
                self.capabilities = await asyncio.to_thread(runner.load)
            self._runner = runner
        except EngineError as error:
            self.failure = error
        except TimeoutError:
            self.failure = EngineDead(
                f"the model did not load within {self._timeouts.load_timeout_s:g} s (LOAD_TIMEOUT_S)"
            )
        except Exception as error:
            logger.exception("the backend raised while loading")
            self.failure = ModelLoadFailed(f"the engine did not load: {error}")
        # llama.cpp's server has put handlers of its own in place of Python's.
        _restore_signals(handlers)
        self.loaded = self.failure is None
        if self.loaded:
            self._hooks(HostLoaded(asyncio.get_running_loop().time() - started, 0))
        self._notify()

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run."""
        if self._runner is None:
            stream.end(None, EngineClosed("the engine is not loaded"))
            return
        self._streams[stream.run_id] = stream
        self._runner.start(stream.run_id, stream.request.prompt, stream.request.sampling)

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""
        if self._runner is not None:
            self._runner.abort(run_id)
            self._retirement.check()

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """Take no more runs, and give the engine up when the others have ended or had their time.

        A thread cannot be killed.
        """
        if self.failure is not None:
            self._end_streams(self.failure)
        elif run_id in self._streams:
            if self._retirement.begin(error, run_id):
                self.loaded = False
                self._notify()
            self._retirement.check()

    def _resume(self) -> None:
        """Take runs again: what did not stop has stopped after all."""
        self.loaded = True
        self._notify()
        if self._changed is not None:
            self._changed.set()

    def _give_up(self, error: EngineError) -> None:
        self.failure = EngineDead(f"{error.message}, and ENGINE_ISOLATION=thread cannot restart it")
        self._hooks(HostLost(error.message, dead=True))
        self._end_streams(self.failure)
        self._notify()
        if self._changed is not None:
            self._changed.set()

    def _end_streams(self, error: EngineError) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            # The runs that still react must not go on without a reader.
            self.abort(stream.run_id)
            stream.end(None, error)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Ask one of the backend's side calls. Raises EngineError."""
        await self.ready()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: EngineError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        assert self._runner is not None  # noqa: S101 - ready
        self._runner.call(
            op, payload, lambda result, error: loop.call_soon_threadsafe(settle, result, error)
        )
        return await future

    async def close(self) -> None:
        """Abort the runs and unload, or leave a wedged backend to the process's end."""
        gave_up = isinstance(self.failure, EngineDead) or self._retirement.error is not None
        self._retirement.stop()
        self.failure = self.failure or EngineClosed("the engine is shutting down")
        self._notify()
        if self._changed is not None:
            self._changed.set()
        if self._loading is not None and not self._loading.done() and not gave_up:
            # A load cannot be interrupted, and what it brings has to be unloaded again.
            await asyncio.wait({self._loading}, timeout=self._timeouts.abort_grace_s)
        if self._runner is not None and gave_up:
            self._runner.release_threads()
        elif self._runner is not None:
            closing = asyncio.create_task(asyncio.to_thread(self._runner.close))
            await asyncio.wait({closing}, timeout=self._timeouts.abort_grace_s)
            if not closing.done():
                logger.error("the engine did not unload within ABORT_GRACE_S")
        self._runner = None

    def detach(self) -> None:
        """Let another event loop own the host, which serves nothing at the moment."""
        self._loop = self._changed = None

    # -- Sink, on the runner's threads ----------------------------------------------------------

    def delta(self, run_id: int, delta: Delta) -> None:
        """One token's text."""
        stream = self._streams.get(run_id)
        if stream is not None:
            stream.feed((delta,))

    def finished(self, run_id: int, finish: Finish) -> None:
        """The run has ended."""
        self._over(run_id, finish, None)

    def aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """The run has ended after an abort."""
        if isinstance(end, Finish):
            self.finished(run_id, end)
        else:
            self.failed(run_id, end)

    def failed(self, run_id: int, error: EngineError) -> None:
        """The run has failed."""
        self._over(run_id, None, error)

    def _over(self, run_id: int, finish: Finish | None, error: EngineError | None) -> None:
        def end() -> None:
            stream = self._streams.pop(run_id, None)
            if stream is not None:
                stream.end(finish, error)
            self._retirement.check()

        assert self._loop is not None  # noqa: S101 - runs start after `ready`
        # A run that was given up may end when the loop has gone, and then nobody wants to know.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()


def _signal_handlers() -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def _restore_signals(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)

"""Thread isolation: the backend runs in this process, for stable libraries and for profiling."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from engine.backends import build
from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.config import BackendConfig
from engine.errors import EngineClosed, EngineDead, EngineError, ModelLoadFailed
from engine.hooks import Hooks, HostLoaded, HostLost
from engine.hosts.child_process import thread_wait_env
from engine.hosts.losses.downtime import Downtime
from engine.hosts.retirement import Retirement
from engine.output import Delta, Finish
from engine.runs.runner import Runner
from engine.runs.stream import TokenStream
from engine.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ThreadHost:
    """Runs the backend on threads of this process.

    It saves a process and a socket, but a crash ends the server too. A stuck run cannot be ended,
    so the engine becomes EngineDead when the other runs have ended or their time is up. Owned by
    the event loop; the runner's threads use only `TokenStream.feed` and `call_soon_threadsafe`.
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
        # Set when a retirement has ended.
        self._changed: asyncio.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._retirement = Retirement(
            timeouts.neighbour_grace_s,
            self._streams.__contains__,
            lambda: all(each.is_aborted for each in self._streams.values()),
            self._fail_permanently,
            self._resume,
        )

    @property
    def downtime(self) -> Downtime | None:
        """Why it takes no runs: there is a stuck run, and the other runs get time to finish."""
        retirement = self._retirement
        if self.failure is not None or retirement.error is None:
            return None
        return Downtime(
            retirement.since, retirement.error.message, finishes_by=retirement.finishes_by
        )

    @property
    def running(self) -> int:
        """How many runs are in flight on it."""
        return len(self._streams)

    @property
    def pids(self) -> Sequence[int]:
        """No ids: the model is in this process."""
        return ()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the capabilities, `loaded` or `failure` have changed."""
        self._callbacks.append(callback)

    def spawn(self) -> None:
        """Do nothing: loading needs the event loop."""

    def abandon(self) -> None:
        """Do nothing: `spawn` has started nothing."""

    async def ready(self) -> Capabilities:
        """Load the model on the first call, and wait until it is loaded.

        Raises ModelLoadFailed, EngineDead or EngineClosed.
        """
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
            # All callers get the same exception object: its traceback must not grow with each.
            raise self.failure.with_traceback(None)
        assert self.capabilities is not None  # noqa: S101 - loaded without a failure
        return self.capabilities

    async def _load(self) -> None:
        started = asyncio.get_running_loop().time()
        try:
            runner = Runner(build(self._config.options), self)
            async with asyncio.timeout(self._timeouts.load_timeout_s):
                self.capabilities = await asyncio.to_thread(_load_model, runner)
            self._runner = runner
        except EngineError as error:
            self.failure = error
        except TimeoutError:
            limit_s = self._timeouts.load_timeout_s
            self.failure = EngineDead(
                f"the model did not load within {limit_s:g} s (LOAD_TIMEOUT_S)"
            )
        except Exception as error:
            logger.exception("the backend raised while loading")
            self.failure = ModelLoadFailed(f"the engine did not load: {error}")
        _reinstall_signal_handlers()
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
        """Stop taking runs, and declare the engine dead when the other runs have had their time.

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
        """Take runs again, because the run that did not stop has ended after all."""
        self.loaded = True
        self._notify()
        if self._changed is not None:
            self._changed.set()

    def _fail_permanently(self, error: EngineError) -> None:
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
            # A run that still reacts must not continue without a reader.
            self.abort(stream.run_id)
            stream.end(None, error)

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Make one of the backend's side calls and return its result. Raises EngineError."""
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
        """Abort the runs and unload the model; a stuck backend is left until the process ends."""
        is_stuck = isinstance(self.failure, EngineDead) or self._retirement.error is not None
        self._retirement.stop()
        self.failure = self.failure or EngineClosed("the engine is shutting down")
        self._notify()
        if self._changed is not None:
            self._changed.set()
        if self._loading is not None and not self._loading.done() and not is_stuck:
            # A load cannot be interrupted, and the loaded model has to be unloaded again.
            await asyncio.wait({self._loading}, timeout=self._timeouts.abort_grace_s)
        if self._runner is not None and is_stuck:
            self._runner.release_threads()
        elif self._runner is not None:
            closing = asyncio.create_task(asyncio.to_thread(self._runner.close))
            await asyncio.wait({closing}, timeout=self._timeouts.abort_grace_s)
            if not closing.done():
                logger.error("the engine did not unload within ABORT_GRACE_S")
        self._runner = None

    async def unload(self) -> None:
        """Raise NotImplementedError: only a model in a process can be unloaded.

        The settings refuse everything that would unload a model on threads.
        """
        raise NotImplementedError("a model on threads stays loaded")

    def revive(self) -> None:
        """Raise NotImplementedError: only a model that was unloaded is loaded again."""
        raise NotImplementedError("a model on threads stays loaded")

    def detach(self) -> None:
        """Let another event loop own the host; nothing may be running."""
        self._loop = self._changed = None

    # -- Sink, on the runner's threads ----------------------------------------------------------

    def on_delta(self, run_id: int, delta: Delta) -> None:
        """Pass one token's text to its stream."""
        stream = self._streams.get(run_id)
        if stream is not None:
            stream.feed((delta,))

    def on_finished(self, run_id: int, finish: Finish) -> None:
        """End the stream of a finished run."""
        self._end_stream(run_id, finish, None)

    def on_aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """End the stream of an aborted run."""
        if isinstance(end, Finish):
            self.on_finished(run_id, end)
        else:
            self.on_failed(run_id, end)

    def on_failed(self, run_id: int, error: EngineError) -> None:
        """End the stream of a failed run."""
        self._end_stream(run_id, None, error)

    def _end_stream(self, run_id: int, finish: Finish | None, error: EngineError | None) -> None:
        def end() -> None:
            stream = self._streams.pop(run_id, None)
            if stream is not None:
                stream.end(finish, error)
            self._retirement.check()

        assert self._loop is not None  # noqa: S101 - runs start after `ready`
        # A stuck run may end after the loop was closed, when its stream has ended already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()


def _load_model(runner: Runner) -> Capabilities:
    """Load a model with the OpenMP settings of llama.cpp's threads.

    The library reads them while it is loaded. They are removed afterwards, because they are not
    meant for the processes that this one starts. `os.environ` is left alone: another thread that
    reads all of it at the moment of the removal would get a KeyError.
    """
    added = thread_wait_env(os.environ)
    for name, value in added.items():
        os.putenv(name, value)
    try:
        return runner.load()
    finally:
        for name in added:
            os.unsetenv(name)


def _reinstall_signal_handlers() -> None:
    """Give SIGINT and SIGTERM back to their Python handlers; only the main thread can.

    llama.cpp's server replaces the handlers of the process without Python's knowledge. A handler
    that was installed during the load is kept.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)

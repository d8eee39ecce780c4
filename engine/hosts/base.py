"""The seam between the engine and where its backend lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineError
from engine.hosts.downtime import Downtime
from engine.stream import TokenStream


class Host(Protocol):
    """Keeps one backend loaded, in this process or in one of its own.

    Every method but `spawn` is called on the event loop, which owns the host.
    """

    # Whether runs feed their stream from a thread other than the loop's.
    threaded: bool

    @property
    def failure(self) -> EngineError | None:
        """What ended the host for good; None while it lives or is being restarted."""

    @property
    def capabilities(self) -> Capabilities | None:
        """What the backend can do; None until it has been loaded once."""

    @property
    def loaded(self) -> bool:
        """Whether a request would be run now: not while loading or between crash and restart."""

    @property
    def downtime(self) -> Downtime | None:
        """Why it takes no runs at the moment, if that began with a failure; None otherwise."""

    @property
    def restarts(self) -> int:
        """How often it was started again after a crash."""

    @property
    def running(self) -> int:
        """How many runs are under way on it."""

    def spawn(self) -> None:
        """Begin loading at once, without a running loop; harmless the second time.

        A worker calls it first thing, so that the model loads while slow imports go on.
        """

    def abandon(self) -> None:
        """Kill what `spawn` has started, at once; nothing was asked of it."""

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises ModelLoadFailed, EngineDead or EngineClosed."""

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run; its slot is free."""

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """A run did not end in time after an abort: get rid of the backend that it holds.

        The other runs get time to end before that, and no new ones are taken meanwhile.
        """

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Ask one of the backend's side calls."""

    def detach(self) -> None:
        """Let another event loop own the host; only while nothing runs and nobody waits."""

    async def close(self) -> None:
        """Stop the runs, unload, leave nothing behind; bounded in time."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the capabilities, `loaded` or `failure` have changed."""

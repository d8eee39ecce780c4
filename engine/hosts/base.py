"""The interface between the engine and the host that runs its backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineError
from engine.hosts.losses.downtime import Downtime
from engine.runs.stream import TokenStream


class Host(Protocol):
    """Keeps one backend loaded, in this process or in a child process.

    Owned by the event loop: every method except `spawn` is called on it.
    """

    # Whether runs feed their streams from another thread than the event loop's.
    threaded: bool

    @property
    def failure(self) -> EngineError | None:
        """Why the host has ended permanently; None while it is alive or being restarted."""

    @property
    def capabilities(self) -> Capabilities | None:
        """The capabilities of the backend; None until it has been loaded once."""

    @property
    def loaded(self) -> bool:
        """Whether a request would start now: not while loading, nor between crash and restart."""

    @property
    def downtime(self) -> Downtime | None:
        """Why the host takes no runs, if that began with a failure; None otherwise."""

    @property
    def restarts(self) -> int:
        """How often the host was restarted after a crash."""

    @property
    def running(self) -> int:
        """How many runs are in flight on it."""

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes that the model is in; none where it is in this process."""

    def spawn(self) -> None:
        """Begin loading without a running event loop; does nothing the second time.

        A worker calls it first, so that the model loads during slow imports.
        """

    def abandon(self) -> None:
        """Kill at once what `spawn` has started; it must not have any requests."""

    async def ready(self) -> Capabilities:
        """Wait until the model is loaded. Raises ModelLoadFailed, EngineDead or EngineClosed."""

    def start_run(self, stream: TokenStream) -> None:
        """Start the stream's run, for which a slot was taken."""

    def abort(self, run_id: int) -> None:
        """Stop a run as soon as the backend can."""

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        """End the host, because a run did not stop in time after an abort.

        The other runs get time to finish first; no new ones are taken meanwhile.
        """

    async def call(self, op: SideCall, payload: Any) -> Any:
        """Make one of the backend's side calls and return its result. Raises EngineError."""

    async def unload(self) -> None:
        """Unload the model, in limited time; `ready` loads it again. Nothing may be running."""

    def revive(self) -> None:
        """Forget the failure of a host that was unloaded since: `ready` loads the model again."""

    def detach(self) -> None:
        """Let another event loop own the host; nothing may be running or waiting."""

    async def close(self) -> None:
        """Abort the runs and unload the model, in limited time."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the capabilities, `loaded` or `failure` have changed."""

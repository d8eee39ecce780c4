"""Events of an engine, for metrics and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import EngineError
from engine.output import Finish
from engine.request import Priority

logger = logging.getLogger(__name__)


class RequestQueued(NamedTuple):
    """A request waits for a slot; `waiting` includes it."""

    request_id: str
    priority: Priority
    waiting: int


class RequestStarted(NamedTuple):
    """A request starts on its slot, after `queue_s` in the queue and `load_s` of model loading."""

    request_id: str
    priority: Priority
    queue_s: float
    load_s: float = 0.0


class FirstToken(NamedTuple):
    """The first token came just now, `after_s` seconds after the start on a slot."""

    request_id: str
    after_s: float


class RequestEnded(NamedTuple):
    """A run has ended, with a finish or an error, and its slot is free.

    If it was aborted, `error` is the reason of the abort. `tokens` is the number of received
    tokens, the only figure for a run without a finish. `decode_s` is the time from the first to the
    last of them.
    """

    request_id: str
    finish: Finish | None
    error: EngineError | None
    aborted: bool
    duration_s: float
    priority: Priority
    tokens: int
    decode_s: float


class HostLoaded(NamedTuple):
    """The engine host is ready for requests, `after_s` seconds after its start."""

    after_s: float
    restarts: int


class HostLost(NamedTuple):
    """The engine host died or was killed; `dead` if it will not be restarted."""

    reason: str
    dead: bool


EngineEvent = RequestQueued | RequestStarted | FirstToken | RequestEnded | HostLoaded | HostLost
Hook = Callable[[EngineEvent], None]


class Hooks:
    """Passes events to hooks in order; an exception of a hook is logged and fails no request.

    Called on the engine's event loop, a few times per request and never per token. The engine
    itself uses no metrics library: `emulator` and `handler` add theirs as hooks.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def add(self, hook: Hook) -> None:
        """Call one more hook from now on."""
        self._hooks = (*self._hooks, hook)

    def __call__(self, event: EngineEvent) -> None:
        """Call every hook with the event."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("an instrumentation hook raised on %s", type(event).__name__)

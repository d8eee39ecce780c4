"""What happens in an engine, told to whoever counts or logs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import EngineError
from engine.output import Finish
from engine.request import Priority

logger = logging.getLogger(__name__)


class RequestQueued(NamedTuple):
    """A request found no free slot; `waiting` includes it."""

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
    """The first token came, now, `after_s` after the start on a slot."""

    request_id: str
    after_s: float


class RequestEnded(NamedTuple):
    """A run is over and its slot free: a finish, or an error, which of an abort is its reason.

    `tokens` are those that came, which for a run without a finish is all that is known of it;
    `decode_s` is from the first of them to the last.
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
    """The engine host is ready for requests, `after_s` after it was started."""

    after_s: float
    restarts: int


class HostLost(NamedTuple):
    """The engine host died or was killed; `dead` when it will not be started again."""

    reason: str
    dead: bool


EngineEvent = RequestQueued | RequestStarted | FirstToken | RequestEnded | HostLoaded | HostLost
Hook = Callable[[EngineEvent], None]


class Hooks:
    """Passes events to hooks in order; a hook that raises is logged and costs nobody a request.

    Called on the engine's event loop, a handful of times a request, never per token: the engine
    knows no metrics library, `emulator` and `handler` plug theirs in here.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def add(self, hook: Hook) -> None:
        """Tell one more hook from here on."""
        self._hooks = (*self._hooks, hook)

    def __call__(self, event: EngineEvent) -> None:
        """Tell every hook."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("an instrumentation hook raised on %s", type(event).__name__)

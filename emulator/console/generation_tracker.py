"""What the engine in this process says at this moment, by the name of its request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import ReferenceType, ref

from handler.active_generation import ActiveGeneration

# The newest: a job that is kept for longer tells of its own in its output.
_MOST = 10_000


class GenerationTracker:
    """Finds an answer that is on its way, so that it can be looked at without a stream of its own.

    A job whose worker returns one JSON streams nothing, and is looked at all the same. That costs
    the one who runs it nothing per token: the texts are those that the answer keeps for itself.
    Answers leave by themselves when nobody else holds them; the moments of their first texts are
    kept. Owned by the event loop.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        # By name, in the order of the first texts: when that was, and the answer while it is there.
        self._known: OrderedDict[str, tuple[float, ReferenceType[ActiveGeneration]]] = OrderedDict()

    def add(self, running: ActiveGeneration) -> None:
        """Remember an answer whose first text is there.

        The next one of the same name, a second try, takes its place.
        """
        name = running.request.generation.request_id
        self._known[name] = self._now(), ref(running)
        self._known.move_to_end(name)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, name: str) -> ActiveGeneration | None:
        """Return the answer that is on its way; None where there is none."""
        known = self._known.get(name)
        return None if known is None else known[1]()

    def first_text_at(self, name: str) -> float | None:
        """Return when an answer's first text came, in seconds since the epoch."""
        known = self._known.get(name)
        return None if known is None else known[0]

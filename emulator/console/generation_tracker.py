"""Find the running generations of this process's engine by their request id."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import ReferenceType, ref

from handler.generation.active_generation import ActiveGeneration

# The newest generations whose first-text time is kept.
_MAX_GENERATIONS = 10_000


class GenerationTracker:
    """Finds a running generation, so that its text can be read although it is not streamed.

    That costs the worker nothing per token, because a generation keeps its deltas anyway. The
    tracker holds weak references: a generation disappears when its worker releases it, and only the
    time of its first text is kept. Owned by the event loop.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        # By request id, oldest first: the time of the first text, and the generation.
        self._entries: OrderedDict[str, tuple[float, ReferenceType[ActiveGeneration]]] = (
            OrderedDict()
        )

    def add(self, generation: ActiveGeneration) -> None:
        """Add a generation that has its first text; it replaces one with the same id (a retry)."""
        request_id = generation.request.generation.request_id
        self._entries[request_id] = self._now(), ref(generation)
        self._entries.move_to_end(request_id)
        if len(self._entries) > _MAX_GENERATIONS:
            self._entries.popitem(last=False)

    def find(self, request_id: str) -> ActiveGeneration | None:
        """Return the running generation of a request; None if it is not running."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry[1]()

    def first_text_at(self, request_id: str) -> float | None:
        """Return when the first text was generated, in seconds since the epoch."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry[0]

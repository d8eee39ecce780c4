"""Let generations with different LoRA adapters take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiter:
    adapter: str | None
    is_admitted: bool = False


class AdapterTurns:
    """Admits only generations with the same LoRA adapter, or with none, at a time.

    llama.cpp never computes two adapters in one batch. It always computes the busy slot with the
    lowest number, and the slots with the same adapter. The others stand still until those end, and
    forever if new requests come for the lowest slot. Here all waiting requests with the adapter of
    the oldest one are admitted together when the last running generation ends. While one waits,
    later requests wait too. Thread-safe.
    """

    def __init__(self) -> None:
        self._adapter: str | None = None
        self._running = 0
        self._waiting: list[_Waiter] = []
        self._changed = threading.Condition()

    @contextmanager
    def take(self, adapter: str | None, aborted: threading.Event) -> Iterator[bool]:
        """Wait until a generation with this adapter may run, and reserve its turn.

        Yields False if `aborted` was set before; the generation must then not run.
        """
        waiter = _Waiter(adapter)
        with self._changed:
            self._waiting.append(waiter)
            self._admit_waiting()
            self._changed.wait_for(lambda: waiter.is_admitted or aborted.is_set())
            if not waiter.is_admitted:
                self._waiting.remove(waiter)
                # Later requests may have waited only because of this one.
                self._admit_waiting()
        try:
            yield waiter.is_admitted
        finally:
            if waiter.is_admitted:
                with self._changed:
                    self._running -= 1
                    self._admit_waiting()

    def wake(self) -> None:
        """Make waiting requests check whether they were aborted."""
        with self._changed:
            self._changed.notify_all()

    def _admit_waiting(self) -> None:
        """Admit the oldest waiting request, if it may run now, and those with the same adapter."""
        if not self._waiting:
            return
        next_adapter = self._waiting[0].adapter
        if self._running and next_adapter != self._adapter:
            return
        self._adapter = next_adapter
        for waiter in self._waiting:
            if waiter.adapter == next_adapter:
                waiter.is_admitted = True
                self._running += 1
        self._waiting = [each for each in self._waiting if not each.is_admitted]
        self._changed.notify_all()

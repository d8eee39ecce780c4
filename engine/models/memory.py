"""Which of several models are loaded, where the memory has no room for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from engine.errors import QueueFull

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How the models of a pool share the memory: see `ModelMemory`.

    `need_bytes` is what each model takes, by its name. `preloaded` are the models that are loaded
    at the start, which fit together. `keep_alive_s` is how long a model stays after its last
    request; infinite for no limit.
    """

    budget_bytes: int
    need_bytes: Mapping[str, int]
    preloaded: Sequence[str]
    keep_alive_s: float = math.inf


class Place(Enum):
    """Whether a model has memory: not, or yes, or while it is being unloaded."""

    OUT = auto()
    IN = auto()
    LEAVING = auto()


class Residency:
    """One model's place in a `ModelMemory`, which made it; owned by the event loop.

    A request calls `enter` before it uses the model and `leave` afterwards. A model with users is
    never unloaded. `need_bytes` is the memory that the model takes. `load` returns when the model
    is loaded or has failed, and whether it still takes memory; `unload` returns when it is gone.
    `keep_alive_s` is how long the model stays after its last user; infinite for no limit.
    """

    def __init__(
        self,
        memory: ModelMemory,
        name: str,
        need_bytes: int,
        load: Callable[[], Awaitable[bool]],
        unload: Callable[[], Awaitable[None]],
        keep_alive_s: float,
    ) -> None:
        self._memory = memory
        self.name = name
        self.need_bytes = need_bytes
        self.load = load
        self.unload = unload
        self.keep_alive_s = keep_alive_s
        self.place = Place.OUT
        self.users = 0
        # Requests that wait for the model's memory.
        self.waiters: deque[asyncio.Future[None]] = deque()
        # Whether no user is admitted, because another model waits for the memory.
        self.is_retiring = False
        self.last_used = 0.0
        self.expiry: asyncio.TimerHandle | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the model has memory, and is not being unloaded."""
        return self.place is Place.IN

    @property
    def expires_at(self) -> float | None:
        """When an unused model is unloaded, in seconds since the epoch; None for no limit."""
        if self.keep_alive_s == math.inf:
            return None
        since = time.monotonic() if self.users else self.last_used
        return time.time() + since + self.keep_alive_s - time.monotonic()

    async def enter(self, max_waiting: int | None = None) -> None:
        """Wait until the model has memory, and use it; the caller must `leave` once.

        `max_waiting` is how many requests may wait already; None for no limit. Raises QueueFull.
        """
        if self.place is Place.IN and not self.is_retiring:
            self.users += 1
            return
        if max_waiting is not None and len(self.waiters) >= max_waiting:
            raise QueueFull(
                f"{len(self.waiters)} requests wait for the model {self.name} to be loaded, the "
                "most that may",
                retry_after_s=1,
            )
        granted = asyncio.get_running_loop().create_future()
        self.waiters.append(granted)
        self._memory.enqueue(self)
        try:
            await granted
        except asyncio.CancelledError:
            if granted in self.waiters:
                self.waiters.remove(granted)
                self._memory.schedule()
            elif granted.done() and not granted.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Stop using the model."""
        self.users -= 1
        if not self.users:
            self.last_used = time.monotonic()
            self._memory.start_expiry(self)
            self._memory.schedule()

    def keep_alive(self, seconds: float) -> None:
        """Set how long the model stays in memory after its last request; 0: not longer."""
        self.keep_alive_s = seconds
        if not self.users and self.place is Place.IN:
            self._memory.start_expiry(self)

    def release(self) -> None:
        """Give the memory back, because the model has failed; the engine fails its requests."""
        if self.place is Place.IN:
            self.place = Place.OUT
        self.admit_waiters()
        self._memory.schedule()

    def occupy(self) -> None:
        """Take the memory before there is an event loop, for a model that is loaded at the start.

        `leave` is not called for it.
        """
        self.place = Place.IN
        self.last_used = time.monotonic()

    def admit_waiters(self) -> None:
        """Let all waiting requests use the model."""
        while self.waiters:
            granted = self.waiters.popleft()
            if not granted.done():
                self.users += 1
                granted.set_result(None)


class ModelMemory:
    """Loads models when requests wait for them, and unloads others to make room in the budget.

    One model is loaded or unloaded at a time. Models get memory in the order in which they were
    first waited for. To make room, the models without users are unloaded, the least recently used
    first. If that is not enough, the least recently used of the others gets no new users, and is
    unloaded when its users have left: so no model can keep another one out. A model that is larger
    than the budget is loaded when no other is.

    Owned by the event loop.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._residencies: list[Residency] = []
        # The models that requests wait for, in order.
        self._queue: deque[Residency] = deque()
        self._expired: set[Residency] = set()
        self._transition: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def used_bytes(self) -> int:
        """The memory of all models that have some."""
        return sum(each.need_bytes for each in self._residencies if each.place is not Place.OUT)

    def add(
        self,
        name: str,
        need_bytes: int,
        load: Callable[[], Awaitable[bool]],
        unload: Callable[[], Awaitable[None]],
        keep_alive_s: float = math.inf,
    ) -> Residency:
        """Return the place of one more model; see `Residency`."""
        residency = Residency(self, name, need_bytes, load, unload, keep_alive_s)
        self._residencies.append(residency)
        return residency

    def enqueue(self, residency: Residency) -> None:
        """Queue a model whose requests wait."""
        if residency not in self._queue:
            self._queue.append(residency)
        self.schedule()

    def start_expiry(self, residency: Residency) -> None:
        """Unload a model after its time without users, counted from its last use."""
        self._stop_expiry(residency)
        if residency.keep_alive_s == math.inf or residency.place is not Place.IN:
            return
        left_s = residency.last_used + residency.keep_alive_s - time.monotonic()
        loop = asyncio.get_running_loop()
        residency.expiry = loop.call_later(max(left_s, 0.0), self._expire, residency)

    def detach(self) -> None:
        """Let another event loop own the models; none may have users."""
        for residency in self._residencies:
            self._stop_expiry(residency)

    async def close(self) -> None:
        """Stop loading and unloading; the engines close their hosts themselves."""
        self._is_closed = True
        for residency in self._residencies:
            self._stop_expiry(residency)
        if self._transition is not None:
            self._transition.cancel()
            with suppress(asyncio.CancelledError):
                await self._transition

    def schedule(self) -> None:
        """Start the next change, unless one is in progress."""
        while self._queue and (
            # Its requests were cancelled, or it is its turn and it is still there.
            not self._queue[0].waiters or self._queue[0].place is Place.IN
        ):
            first = self._queue.popleft()
            if first.place is Place.IN:
                first.admit_waiters()
        next_model = self._queue[0] if self._queue else None
        retiring = [] if next_model is None else self._choose(next_model)
        for residency in self._residencies:
            residency.is_retiring = residency in retiring
            if residency.place is Place.IN and not residency.is_retiring:
                residency.admit_waiters()
        if self._transition is not None or self._is_closed:
            return
        if next_model is not None and next_model.place is Place.OUT and not retiring:
            self._start(self._load(next_model))
            return
        expired = [each for each in self._expired if not each.users and each.place is Place.IN]
        for residency in (*retiring, *expired):
            if not residency.users:
                # Before the task begins: until then another request could begin to use it.
                residency.place = Place.LEAVING
                self._start(
                    self._unload(residency, by=None if residency in expired else next_model)
                )
                return

    def _choose(self, next_model: Residency) -> list[Residency]:
        """Return the models that have to leave so that there is room for another one."""
        others = [each for each in self._residencies if each.place is Place.IN]
        # Models that are leaving have given their memory back when the next change starts.
        excess = sum(each.need_bytes for each in others) + next_model.need_bytes - self.budget_bytes
        # A model that is retiring goes on to, so that it is not another one each time.
        others.sort(key=lambda each: (each.users > 0, not each.is_retiring, each.last_used))
        chosen: list[Residency] = []
        for residency in others:
            if excess <= 0:
                break
            chosen.append(residency)
            excess -= residency.need_bytes
        return chosen

    def _start(self, change: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await change
            except Exception:
                # Without this, no model could be loaded or unloaded any more.
                logger.exception("a model could not be loaded or unloaded")
            finally:
                self._transition = None
            self.schedule()

        self._transition = asyncio.get_running_loop().create_task(run())

    async def _load(self, residency: Residency) -> None:
        residency.place = Place.IN
        residency.last_used = time.monotonic()
        residency.admit_waiters()
        if not await residency.load():
            residency.place = Place.OUT

    async def _unload(self, residency: Residency, by: Residency | None) -> None:
        self._stop_expiry(residency)
        reason = "it was not used" if by is None else f"{by.name} needs the memory"
        logger.info("the model %s is unloaded: %s", residency.name, reason)
        try:
            await residency.unload()
        finally:
            residency.place = Place.OUT

    def _expire(self, residency: Residency) -> None:
        residency.expiry = None
        if not residency.users:
            self._expired.add(residency)
            self.schedule()

    def _stop_expiry(self, residency: Residency) -> None:
        self._expired.discard(residency)
        if residency.expiry is not None:
            residency.expiry.cancel()
            residency.expiry = None

"""Several models at once: an engine for each, seen as one by those who start, count and close."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from engine.admission import Admission, Slot
from engine.capabilities import Capabilities
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineClosed, EngineError
from engine.hooks import EngineEvent, Hook, HostLoaded, HostLost
from engine.instance import EngineState
from engine.request import Priority


class PoolReservation(Slot):
    """A place among the jobs of all models: whoever has it waits for a slot of its model."""

    def take(self) -> bool:
        """Return False: it is no slot of an engine, and its owner keeps it to the job's end."""
        return False


class EnginePool:
    """Engines by the names of their models; the first one's is the default.

    Each has an admission and hosts of its own, so that a model which is busy, loads or is dead
    costs the others nothing. What is asked here is asked of all of them: ready as soon as one is,
    dead when all are. Requests are brought to the `engines` themselves. Owned by one event loop,
    like they are.

    Raises:
        ValueError: there is no model.
    """

    def __init__(self, configs: Mapping[str, EngineConfig], hooks: Sequence[Hook] = ()) -> None:
        if not configs:
            raise ValueError("a pool needs a model")
        self.engines: Mapping[str, Engine] = {
            name: Engine(config, hooks) for name, config in configs.items()
        }
        first = next(iter(configs.values()))
        # Only jobs and batches come through it, which are never refused.
        self._places = Admission(self.slots, first.max_queue)
        # Whether all have been asked to load: without it a model would wait for its first request.
        self._asked = False
        self.subscribe(self._on_event)

    @property
    def state(self) -> EngineState:
        """Ready when one engine is, dead when all are."""
        states = {engine.state for engine in self.engines.values()}
        for state in (EngineState.READY, EngineState.LOADING, EngineState.RESTARTING):
            if state in states:
                return state
        return EngineState.DEAD

    @property
    def failure(self) -> EngineError | None:
        """Why the first engine is dead, when all are."""
        failures = [engine.failure for engine in self.engines.values()]
        return failures[0] if all(failures) else None

    @property
    def trouble(self) -> str | None:
        """What failed and when it is started again, of the first engine, when none is ready."""
        if self.state is not EngineState.RESTARTING:
            return None
        return next(filter(None, (engine.trouble for engine in self.engines.values())), None)

    @property
    def rejects_interactive(self) -> bool:
        """Whether every engine refuses interactive requests or is dead, and one is not dead."""
        alive = [engine for engine in self.engines.values() if engine.failure is None]
        return bool(alive) and all(engine.rejects_interactive for engine in alive)

    @property
    def slots(self) -> int:
        """How many generations run side by side, on engines that are not dead."""
        alive = [engine for engine in self.engines.values() if engine.failure is None]
        return sum(engine.slots for engine in alive) or 1

    @property
    def running(self) -> int:
        """How many generations hold a slot."""
        return sum(engine.running for engine in self.engines.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot, or for a place."""
        return self._places.waiting + sum(engine.waiting for engine in self.engines.values())

    @property
    def restarts(self) -> int:
        """How often any host process was started again after a crash."""
        return sum(engine.restarts for engine in self.engines.values())

    def subscribe(self, hook: Hook) -> None:
        """Tell a hook of all events of all engines from here on."""
        for engine in self.engines.values():
            engine.subscribe(hook)

    def spawn(self) -> None:
        """Begin loading all models at once, without waiting and without a running loop."""
        for engine in self.engines.values():
            engine.spawn()

    def abandon(self) -> None:
        """Undo `spawn` at once, for a process that ends before it has a running loop."""
        for engine in self.engines.values():
            engine.abandon()

    async def ready(self) -> Capabilities:
        """Wait until the first model is loaded, and have all load. Raises EngineUnavailable."""
        if self._asked:
            for engine in self.engines.values():
                if engine.state is EngineState.READY and engine.capabilities is not None:
                    return engine.capabilities
        self._asked = True
        tasks = [asyncio.create_task(engine.ready()) for engine in self.engines.values()]
        try:
            for task in asyncio.as_completed(tasks):
                with suppress(EngineError):
                    return await task
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # None is ready, and each says why: the default's word is passed on.
        return await next(iter(self.engines.values())).ready()

    async def wait_until_dead(self) -> EngineError:
        """Wait until all engines are dead or closed; return the first one's reason."""
        return (await asyncio.gather(*(each.wait_until_dead() for each in self.engines.values())))[
            0
        ]

    def detach(self) -> None:
        """Let another event loop own the engines; only while nothing runs and nothing waits."""
        self._asked = False
        for engine in self.engines.values():
            engine.detach()

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        """Wait for a place for a job that has yet to be read, whatever its model will be.

        With `alone` no other job has a place while it is held.

        There are as many as slots. Its generation waits for a slot of its model in the same class,
        so two jobs of one model may hold the places of two. Raises EngineUnavailable.
        """
        await self.ready()
        self._places.resize(self.slots)
        await self._places.acquire(priority, exclusive=exclusive)
        return PoolReservation(self._places.release)

    async def close(self) -> None:
        """Abort what runs, refuse what waits, unload everything; bounded by the clocks."""
        self._places.fail_waiting(EngineClosed("the engine is shutting down"))
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, HostLoaded | HostLost):
            # After the engine has taken note of it itself.
            asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        if (failure := self.failure) is not None:
            self._places.fail_waiting(failure)
        else:
            self._places.resize(self.slots)


# What entry points start and close: one model or several.
AnyEngine = Engine | EnginePool


def engines_by_model(engine: AnyEngine, name: str) -> Mapping[str, Engine]:
    """Return the engines by their models' names; `name` is the one's where there is no pool."""
    return engine.engines if isinstance(engine, EnginePool) else {name: engine}

"""Several models at once: one engine per model, with the interface of a single engine."""

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
from engine.models.memory import MemoryPlan, ModelMemory
from engine.request import Priority


class PoolReservation(Slot):
    """A reservation for a job of any model; the job then waits for a slot of its own model."""

    def take(self) -> bool:
        """Return False: it is no slot of an engine, and is held until the end of the job."""
        return False


class EnginePool:
    """Engines by the names of their models; the first one is the default.

    Each engine has its own admission and hosts, so a model that is busy, loading or dead does not
    affect the others. The pool is ready as soon as one engine is, and dead when all are. Requests
    go to the `engines` directly. Owned by one event loop, like the engines.

    With a `memory_plan`, only its `preloaded` models are loaded at the start, and the others when
    they are requested.

    Raises:
        ValueError: there is no model.
    """

    def __init__(
        self,
        configs: Mapping[str, EngineConfig],
        hooks: Sequence[Hook] = (),
        memory_plan: MemoryPlan | None = None,
    ) -> None:
        if not configs:
            raise ValueError("a pool needs a model")
        self._engines = {name: Engine(config, hooks) for name, config in configs.items()}
        self._hooks = list(hooks)
        self._memory_plan = memory_plan
        self.memory: ModelMemory | None = None
        # The engines that load their models at the start.
        self._preloaded: Sequence[Engine] = tuple(self.engines.values())
        if memory_plan is not None:
            self.memory = ModelMemory(memory_plan.budget_bytes)
            for name, engine in self.engines.items():
                need_bytes = memory_plan.need_bytes[name]
                engine.share_memory(self.memory, name, need_bytes, memory_plan.keep_alive_s)
            self._preloaded = [self.engines[name] for name in memory_plan.preloaded]
        first = next(iter(configs.values()))
        # Only for jobs and batches, which are never refused.
        self._reservations = Admission(self.slots, first.max_queue)
        # Whether `ready` has made all engines load: otherwise a model would be loaded only for its
        # first request.
        self._has_started_all = False
        self.subscribe(self._on_event)

    @property
    def engines(self) -> Mapping[str, Engine]:
        """The engines by the names of their models; always the same mapping."""
        return self._engines

    def add(self, name: str, config: EngineConfig, need_bytes: int) -> Engine:
        """Add a model to a pool with a memory plan; it is loaded when it is requested.

        Raises ValueError if there is no plan, or a model of that name.
        """
        if self.memory is None or self._memory_plan is None or name in self._engines:
            raise ValueError(f"the model {name} cannot be added")
        engine = self._engines[name] = Engine(config, self._hooks)
        engine.share_memory(self.memory, name, need_bytes, self._memory_plan.keep_alive_s)
        return engine

    @property
    def state(self) -> EngineState:
        """Ready when one engine is, or has been and would load again; dead when all are."""
        states = {engine.state for engine in self.engines.values()}
        if any(
            engine.state is EngineState.UNLOADED and engine.capabilities is not None
            for engine in self.engines.values()
        ):
            return EngineState.READY
        for state in (EngineState.READY, EngineState.LOADING, EngineState.RESTARTING):
            if state in states:
                return state
        # Nothing has been loaded so far.
        return EngineState.LOADING if EngineState.UNLOADED in states else EngineState.DEAD

    @property
    def capabilities(self) -> Capabilities | None:
        """The capabilities of the first model that has been loaded; None before."""
        known = (engine.capabilities for engine in self.engines.values())
        return next((each for each in known if each is not None), None)

    @property
    def failure(self) -> EngineError | None:
        """Why the first engine is dead, if all are."""
        failures = [engine.failure for engine in self.engines.values()]
        return failures[0] if all(failures) else None

    @property
    def trouble(self) -> str | None:
        """A sentence on the failure and the time of the restart; None unless restarting.

        If several engines are restarting, it is about the first one.
        """
        if self.state is not EngineState.RESTARTING:
            return None
        return next(filter(None, (engine.trouble for engine in self.engines.values())), None)

    @property
    def rejects_interactive(self) -> bool:
        """Whether all engines that are not dead refuse interactive requests.

        False if all engines are dead.
        """
        alive = [engine for engine in self.engines.values() if engine.failure is None]
        return bool(alive) and all(engine.rejects_interactive for engine in alive)

    @property
    def slots(self) -> int:
        """How many generations run side by side on the engines that are not dead; at least 1."""
        alive = [engine for engine in self.engines.values() if engine.failure is None]
        return sum(engine.slots for engine in alive) or 1

    @property
    def running(self) -> int:
        """How many generations hold a slot."""
        return sum(engine.running for engine in self.engines.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot or for a reservation."""
        return self._reservations.waiting + sum(engine.waiting for engine in self.engines.values())

    @property
    def restarts(self) -> int:
        """How often any host process was restarted after a crash."""
        return sum(engine.restarts for engine in self.engines.values())

    def subscribe(self, hook: Hook) -> None:
        """Call a hook with all events of all engines from now on."""
        self._hooks.append(hook)
        for engine in self.engines.values():
            engine.subscribe(hook)

    def spawn(self) -> None:
        """Begin loading models at the start, without waiting and without a running event loop."""
        for engine in self._preloaded:
            engine.spawn()

    def abandon(self) -> None:
        """Undo `spawn` at once, in a process that ends before it has a running event loop."""
        for engine in self.engines.values():
            engine.abandon()

    async def ready(self) -> Capabilities:
        """Load the models of the start, and wait until one is loaded. Raises EngineUnavailable.

        If none of them can be loaded, the other models are tried.
        """
        if self._has_started_all:
            for engine in self.engines.values():
                is_there = engine.state in (EngineState.READY, EngineState.UNLOADED)
                if is_there and engine.capabilities is not None:
                    return engine.capabilities
        self._has_started_all = True
        tasks = [asyncio.create_task(engine.ready()) for engine in self._preloaded]
        try:
            for task in asyncio.as_completed(tasks):
                with suppress(EngineError):
                    return await task
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self.engines.values():
            if engine not in self._preloaded:
                with suppress(EngineError):
                    return await engine.ready()
        # All have failed: raise the error of the default model.
        return await next(iter(self.engines.values())).ready()

    async def wait_until_dead(self) -> EngineError:
        """Wait until all engines are dead or closed, and return the first one's reason."""
        while True:
            engines = tuple(self.engines.values())
            failures = await asyncio.gather(*(each.wait_until_dead() for each in engines))
            # A model that could not be loaded may have been tried again meanwhile.
            if all(each.failure is not None for each in engines):
                return failures[0]

    def detach(self) -> None:
        """Let another event loop own the engines; nothing may be running or waiting."""
        self._has_started_all = False
        if self.memory is not None:
            self.memory.detach()
        for engine in self.engines.values():
            engine.detach()

    async def reserve(self, priority: Priority, *, exclusive: bool = False) -> Slot:
        """Wait for a reservation for a job that has not been read yet, whatever its model.

        No other job has a reservation while an exclusive one is held.

        There are as many reservations as slots. The generation then waits for a slot of its model
        with the same priority, so two jobs of one model may take the reservations of two models.
        Raises EngineUnavailable.
        """
        await self.ready()
        self._reservations.resize(self.slots)
        await self._reservations.acquire(priority, exclusive=exclusive)
        return PoolReservation(self._reservations.release)

    async def close(self) -> None:
        """Abort running requests, refuse waiting ones, and unload all models in limited time."""
        self._reservations.fail_waiting(EngineClosed("the engine is shutting down"))
        if self.memory is not None:
            await self.memory.close()
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, HostLoaded | HostLost):
            # Later, because the engine updates its own state after this event.
            asyncio.get_running_loop().call_soon(self._update_reservations)

    def _update_reservations(self) -> None:
        if (failure := self.failure) is not None:
            self._reservations.fail_waiting(failure)
        else:
            self._reservations.resize(self.slots)


# The engine or engines that an entry point starts and closes.
AnyEngine = Engine | EnginePool


def engines_by_model(engine: AnyEngine, name: str) -> Mapping[str, Engine]:
    """Return the engines by their models' names; `name` is for an engine without a pool."""
    return engine.engines if isinstance(engine, EnginePool) else {name: engine}

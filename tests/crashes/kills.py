"""The order of kills, and how each process is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import Literal

from tests.crashes.ledger import Ledger
from tests.crashes.server import Server
from tests.crashes.workers import Workers
from tests.waiting import wait_until

Target = Literal["server", "store", "engine host", "worker"]
# Of a hundred kills.
SHARES: dict[Target, int] = {"server": 20, "store": 30, "engine host": 25, "worker": 25}
_PROCESS_TIMEOUT_S = 30.0


def plan(count: int, rng: random.Random) -> list[Target]:
    """Return the targets of `count` kills, in a random order."""
    targets = [target for target, share in SHARES.items() for _ in range(share)]
    chosen = [targets[at % len(targets)] for at in range(0, count)]
    if count % len(targets):
        # The count is no multiple of a hundred: take the targets by their shares.
        chosen = [targets[at * len(targets) // count] for at in range(count)]
    rng.shuffle(chosen)
    return chosen


class Killer:
    """Kills processes, and restarts those that have no supervisor."""

    def __init__(
        self, server: Server, workers: Workers, ledger: Ledger, rng: random.Random
    ) -> None:
        self.done: Counter[Target] = Counter()
        self.orphans: list[int] = []
        self._server = server
        self._workers = workers
        self._ledger = ledger
        self._generated = -1
        self._rng = rng

    async def kill(self, target: Target, *, is_finished: Callable[[], bool]) -> None:
        """Kill one process after a random delay; `is_finished` returns whether no job is open."""
        await asyncio.sleep(self._rng.random() * 0.02)
        if target == "server":
            await self._server.kill()
            await self._server.start()
            self.orphans += await self._server.orphans()
        elif target == "store":
            await self._kill_child(lambda: self._server.store_pid)
        elif target == "engine host":
            # The server gives up an engine that dies repeatedly without an answer in between.
            await wait_until(
                lambda: self._ledger.generated > self._generated or is_finished(),
                _PROCESS_TIMEOUT_S,
            )
            await self._kill_child(lambda: self._server.engine_pid)
            self._generated = self._ledger.generated
        else:
            self._workers.kill_one(self._rng)
        self._workers.replace_ended()
        self.done[target] += 1

    async def _kill_child(self, find: Callable[[], int | None]) -> None:
        await wait_until(lambda: find() is not None, _PROCESS_TIMEOUT_S)
        # The process may have ended since, and its successor not have started.
        if (pid := find()) is not None:
            os.kill(pid, signal.SIGKILL)

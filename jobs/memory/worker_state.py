"""What a store knows of one worker: what it has, and what it is to stop."""

from __future__ import annotations

import asyncio


class Holder:
    """The jobs a worker holds, and those it still has to be told to stop; owned by `Workers`."""

    __slots__ = ("_polls", "_stops", "_wanted", "held")

    def __init__(self) -> None:
        # Dicts for their order. A stop has the time until which it is worth telling.
        self.held: dict[str, None] = {}
        self._stops: dict[str, float] = {}
        self._polls = 0
        self._wanted = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Whether nothing is known of it, and nobody listens."""
        return not self.held and not self._stops and not self._polls

    def stop(self, job_id: str, until: float) -> None:
        """Have the worker stop a job; it hears of it once."""
        self._stops[job_id] = until
        self._wanted.set()

    def unstop(self, job_id: str) -> None:
        """Say nothing: the job is handed out to it anew."""
        self._stops.pop(job_id, None)

    def expire(self, now: float) -> None:
        """Drop the stops that nobody has asked for."""
        for job_id in [each for each, until in self._stops.items() if until <= now]:
            del self._stops[job_id]

    async def stops(self, wait_s: float) -> list[str]:
        """Return what is to be stopped, waiting for some; none after `wait_s`."""
        if not self._stops and wait_s > 0:
            self._wanted.clear()
            self._polls += 1
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            finally:
                self._polls -= 1
        stops, self._stops = list(self._stops), {}
        return stops

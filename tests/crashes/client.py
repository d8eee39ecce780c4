"""Clients that send jobs, ask what became of them, and ask again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import httpx2
import orjson

from tests.crashes.ledger import Ledger
from tests.waiting import poll_until

_PAUSE_S = 0.02
_ENDS_S = 300.0
# After a connection that broke off: the server needs the processor to come back.
_DOWN_S = 0.15
# So often a result that was seen is looked at once more while others are sent.
_LOOK_AGAIN = 0.2


class Client:
    """Some senders side by side, each with one job at a time, whatever the server is doing."""

    def __init__(self, http: httpx2.AsyncClient, endpoints: Sequence[str], seed: int) -> None:
        self.ledger = Ledger()
        self.finished = 0
        self.broke_off = 0
        # Answers of 5xx, by their status and what they said.
        self.refused: Counter[tuple[int, str]] = Counter()
        self._http = http
        self._endpoints = endpoints
        self._rng = random.Random(seed)
        self._seed = seed
        self._places: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def send(self, count: int, at_once: int) -> None:
        """Send jobs and follow each to its end."""
        numbers = iter(range(count))

        async def sender() -> None:
            for number in numbers:
                job_id = await self._accepted(number)
                await self._end(job_id)
                async with self._changed:
                    self.finished += 1
                    self._changed.notify_all()
                if self._rng.random() < _LOOK_AGAIN:
                    await self._look(self._rng.choice(list(self.ledger.finals)))

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(sender())

    async def reached(self, count: int) -> None:
        """Wait until so many jobs have ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.finished >= count)

    async def look_at_all(self, at_once: int) -> None:
        """Ask for every job that was acknowledged."""
        ids = iter(list(self.ledger.prompts))

        async def looker() -> None:
            for job_id in ids:
                await poll_until(partial(self._look, job_id), _ENDS_S, _PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(looker())

    async def _accepted(self, number: int) -> str:
        prompt = f"say {number} of {self._seed} with nonce {self._rng.getrandbits(64):x}"
        place = f"/v2/{self._rng.choice(self._endpoints)}"
        while True:
            answer = await self._ask("POST", f"{place}/run", {"input": {"prompt": prompt}})
            if answer is not None and answer.status_code == 200:
                job_id: str = orjson.loads(answer.content)["id"]
                self._places[job_id] = place
                self.ledger.acknowledged(job_id, prompt)
                return job_id
            await asyncio.sleep(_PAUSE_S)

    async def _end(self, job_id: str) -> None:
        # Some wait for the end, some look again and again: both are ways to see a result.
        verb, pause_s = ("status-sync", 0.0) if self._rng.random() < 0.7 else ("status", _PAUSE_S)
        await poll_until(partial(self._look, job_id, verb), _ENDS_S, pause_s)

    async def _look(self, job_id: str, verb: str = "status") -> bool:
        answer = await self._ask("GET", f"{self._places[job_id]}/{verb}/{job_id}")
        if answer is None:
            return False
        return self.ledger.saw(job_id, answer.status_code, answer.content)

    async def _ask(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> httpx2.Response | None:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx2.HTTPError:
            self.broke_off += 1
            await asyncio.sleep(_DOWN_S)
            return None
        if answer.status_code >= 500:
            self.refused[answer.status_code, answer.text] += 1
        return answer

"""Several generations of one call, at once where the engine has the slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self

from engine import Delta, Engine
from engine.abortable import Abortable
from engine.errors import GenerationCancelled, GenerationTimeout
from handler.completed_answer import CompletedAnswer
from handler.pipeline import Pipeline
from handler.request import TextRequest

# Batches that may wait for the reader: the channels behind them gather what comes meanwhile.
_AHEAD = 8

Part = tuple[int, list[Delta] | CompletedAnswer]


async def run_all(pipeline: Pipeline, requests: Sequence[TextRequest]) -> list[CompletedAnswer]:
    """Return the answers to all requests, in their order; the first failure ends the others.

    No more of them than the engine has slots stand at its door at a time, so one call with many
    choices does not fill the queue for everybody. Raises what `Pipeline.run` does.
    """
    room = await _room(pipeline.engine)

    async def run(request: TextRequest) -> CompletedAnswer:
        async with room:
            return await pipeline.run(request)

    tasks = [asyncio.create_task(run(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)


class ParallelGenerations(Abortable):
    """The streams of a call with several choices, as one stream of parts by index.

    Its first part has been waited for when `open` returns, so an error before any text is raised
    where an HTTP status can still be chosen (R30). `abort` stops them all. Owned by the task that
    opened it; each stream is read by a task of its own, which waits while the reader is slow.
    """

    def __init__(self, pipeline: Pipeline, requests: Sequence[TextRequest]) -> None:
        self.created = 0
        self._pipeline = pipeline
        self._requests = requests
        self._parts: asyncio.Queue[Part | Exception] = asyncio.Queue(_AHEAD)
        self._left = len(requests)
        self._first: Part | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> Self:
        """Start them and wait for the first part. Raises what `Pipeline.open` does."""
        room = await _room(self._pipeline.engine)
        self._tasks = [
            asyncio.create_task(self._read(room, index, request))
            for index, request in enumerate(self._requests)
        ]
        try:
            first = await self._parts.get()
            if isinstance(first, Exception):
                raise first
        except BaseException:
            self.abort()
            raise
        self._first = first
        return self

    async def _read(self, room: asyncio.Semaphore, index: int, request: TextRequest) -> None:
        try:
            async with room, await self._pipeline.open(request) as running:
                self.created = self.created or running.created
                async for batch in running.batches():
                    await self._parts.put((index, batch))
                await self._parts.put((index, await running.answer()))
        except Exception as error:
            # Raised by whoever reads the parts.
            await self._parts.put(error)

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Part]]:
        """Yield all that has come, at once the first time, then at most every `interval_s`.

        Each choice's answer comes after its last batch. Raises EngineError.
        """
        loop = asyncio.get_running_loop()
        part: Part | Exception = self._first or await self._parts.get()
        while True:
            sent, come = loop.time(), list[Part]()
            while not isinstance(part, Exception):
                come.append(part)
                self._left -= isinstance(part[1], CompletedAnswer)
                if self._parts.empty():
                    break
                part = self._parts.get_nowait()
            if come:
                yield come
            if not self._left:
                return
            if isinstance(part, Exception):
                break
            if interval_s and (rest := sent + interval_s - loop.time()) > 0:
                await asyncio.sleep(rest)
            part = await self._parts.get()
        self.abort()
        raise part

    def abort(self) -> None:
        """Stop all that still runs; whoever reads on gets GenerationCancelled, as from one."""
        for task in self._tasks:
            task.cancel()
        if not self._left:
            return
        # None of the tasks puts anything any more, and a reader would wait for ever.
        while not self._parts.empty():
            self._parts.get_nowait()
        self._parts.put_nowait(GenerationCancelled("the request was cancelled"))

    async def __aexit__(self, *left: object) -> None:
        await _end(self._tasks)


class CompletedGenerations(Abortable):
    """Answers that needed no generation, in the form of a stream: nothing comes before them."""

    def __init__(self, answers: Sequence[CompletedAnswer]) -> None:
        self.created = answers[0].created
        self._answers = answers

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Part]]:
        """Yield the answers by index, all at once."""
        yield list(enumerate(self._answers))

    def abort(self) -> None:
        """Nothing runs."""


async def _room(engine: Engine) -> asyncio.Semaphore:
    """Return a door as wide as the engine, which nobody knows before it has loaded its model.

    Raises:
        EngineUnavailable: it could not.
        GenerationTimeout: it took longer than a request may.
    """
    if engine.capabilities is None:
        limit_s = engine.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await engine.ready()
        except TimeoutError as error:
            raise GenerationTimeout(
                f"the request took longer than {limit_s:g} s (REQUEST_TIMEOUT_S)"
            ) from error
    return asyncio.Semaphore(engine.slots)


async def _end(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""Run the generations of one call in parallel, as many as the engine has slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self

from engine import Delta, Engine
from engine.errors import GenerationCancelled, GenerationTimeout
from engine.runs.abortable import Abortable
from handler.generation.completed_answer import CompletedAnswer
from handler.input.request import TextRequest
from handler.pipeline import Pipeline

# Parts that wait for the reader. When the queue is full, deltas wait in the generations' channels.
_MAX_QUEUED_PARTS = 8

# A choice's index, with new deltas or, at its end, its answer.
Part = tuple[int, list[Delta] | CompletedAnswer]


async def run_all(pipeline: Pipeline, requests: Sequence[TextRequest]) -> list[CompletedAnswer]:
    """Return the answers to all requests, in their order. The first failure cancels the others.

    At most as many requests as the engine has slots are submitted at a time, so one call with many
    choices does not fill the engine's queue. Raises what `Pipeline.run` raises.
    """
    permits = await _create_slot_semaphore(pipeline.engine)

    async def run(request: TextRequest) -> CompletedAnswer:
        async with permits:
            return await pipeline.run(request)

    tasks = [asyncio.create_task(run(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancel_all(tasks)


class ParallelGenerations(Abortable):
    """Merges the streams of a call with several choices into one stream of parts.

    `open` waits for the first part, so an error before any text is raised while an HTTP status can
    still be sent. `abort` stops all generations. A task per generation reads its stream, and
    waits while the reader is slow. Not thread-safe; used by the task that opened it.
    """

    def __init__(self, pipeline: Pipeline, requests: Sequence[TextRequest]) -> None:
        self.created = 0
        self.starts_in_reasoning = False
        self._pipeline = pipeline
        self._requests = requests
        self._parts: asyncio.Queue[Part | Exception] = asyncio.Queue(_MAX_QUEUED_PARTS)
        self._unfinished = len(requests)
        self._first_part: Part | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> Self:
        """Start the generations and wait for the first part. Raises what `Pipeline.open` raises."""
        permits = await _create_slot_semaphore(self._pipeline.engine)
        self._tasks = [
            asyncio.create_task(self._read_stream(permits, index, request))
            for index, request in enumerate(self._requests)
        ]
        try:
            first = await self._parts.get()
            if isinstance(first, Exception):
                raise first
        except BaseException:
            self.abort()
            raise
        self._first_part = first
        return self

    async def _read_stream(
        self, permits: asyncio.Semaphore, index: int, request: TextRequest
    ) -> None:
        try:
            async with permits, await self._pipeline.open(request) as generation:
                self.created = self.created or generation.created
                # The same for all: a call has several prompts only without a chat template.
                self.starts_in_reasoning = generation.starts_in_reasoning
                async for batch in generation.batches():
                    await self._parts.put((index, batch))
                await self._parts.put((index, await generation.build_answer()))
        except Exception as error:
            # `batches` raises it.
            await self._parts.put(error)

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Part]]:
        """Yield the available parts: immediately at first, then at most every `interval_s` seconds.

        The answer of each choice follows its last deltas. Raises EngineError.
        """
        loop = asyncio.get_running_loop()
        part: Part | Exception = self._first_part or await self._parts.get()
        while True:
            started, batch = loop.time(), list[Part]()
            while not isinstance(part, Exception):
                batch.append(part)
                self._unfinished -= isinstance(part[1], CompletedAnswer)
                if self._parts.empty():
                    break
                part = self._parts.get_nowait()
            if batch:
                yield batch
            if not self._unfinished:
                return
            if isinstance(part, Exception):
                break
            if interval_s and (delay_s := started + interval_s - loop.time()) > 0:
                await asyncio.sleep(delay_s)
            part = await self._parts.get()
        self.abort()
        raise part

    def abort(self) -> None:
        """Stop all generations. `batches` then raises GenerationCancelled, as for a single one."""
        for task in self._tasks:
            task.cancel()
        if not self._unfinished:
            return
        # The cancelled tasks add nothing further: without this error the reader would wait forever.
        while not self._parts.empty():
            self._parts.get_nowait()
        self._parts.put_nowait(GenerationCancelled("the request was cancelled"))

    async def __aexit__(self, *exc_info: object) -> None:
        await _cancel_all(self._tasks)


class CompletedGenerations(Abortable):
    """Presents answers that needed no generation as a stream."""

    def __init__(self, answers: Sequence[CompletedAnswer]) -> None:
        self.created = answers[0].created
        self.starts_in_reasoning = False
        self._answers = answers

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Part]]:
        """Yield all answers in one batch."""
        yield list(enumerate(self._answers))

    def abort(self) -> None:
        """Do nothing: there is no generation to stop."""


async def _create_slot_semaphore(engine: Engine) -> asyncio.Semaphore:
    """Return a semaphore with one permit per slot; wait for the model, which determines the slots.

    Raises:
        EngineUnavailable: the model could not be loaded.
        GenerationTimeout: loading took longer than a request's timeout.
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


async def _cancel_all(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

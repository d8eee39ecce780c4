"""The pipeline every door leads to: generate, collect, validate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from engine import Delta, Engine, Finish, TokenLogprob, TokenStream
from handler.request import TextRequest
from validation import Validator, Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished answer.

    `text` is what the client gets, after sanitising; `deltas` are the model's own words as they
    came, which joined are its raw text (R46). `created` is seconds since the epoch.
    """

    id: str
    model: str
    created: int
    text: str
    deltas: tuple[str, ...]
    finish: Finish
    streaming: bool
    logprobs: tuple[TokenLogprob, ...] = ()
    warnings: tuple[str, ...] = ()
    verdict: Verdict | None = None

    @property
    def raw_text(self) -> str:
        """The model's text before sanitising."""
        return "".join(self.deltas)

    @property
    def sanitized(self) -> bool:
        """Whether validation changed the text (R47)."""
        return self.text != self.raw_text


class Running:
    """One answer on its way: iterate the batches, then take the `answer`.

    The first batch has been waited for when it is made, so an error that comes before any text is
    raised where an HTTP status can still be chosen (R30). Leaving the `async with` block stops the
    generation. Owned by the task that made it.
    """

    def __init__(
        self,
        request: TextRequest,
        stream: TokenStream,
        first: list[Delta],
        model: str,
        validator: Validator | None,
    ) -> None:
        self.request = request
        self.model = model
        self.created = int(time.time())
        self.warnings = request.warnings + stream.warnings
        self._stream = stream
        self._first = first
        self._validator = validator
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Delta]]:
        """Yield what has come, at once the first time, then at most every `interval_s`.

        A consumer that is slower than the model finds longer batches. Raises EngineError.
        """
        batch = self._first
        loop = asyncio.get_running_loop()
        while batch:
            sent = loop.time()
            self._keep(batch)
            yield batch
            if interval_s and (rest := sent + interval_s - loop.time()) > 0:
                await asyncio.sleep(rest)
            batch = await anext(self._stream, [])

    def _keep(self, batch: list[Delta]) -> None:
        self._texts += [delta.text for delta in batch if delta.text]
        self._logprobs += [delta.logprob for delta in batch if delta.logprob is not None]

    def answer(self) -> Answer:
        """Return the finished answer, validated; only after `batches` has ended."""
        finish = self._stream.result
        if finish is None:
            raise RuntimeError("the answer is not finished")
        request, text = self.request, "".join(self._texts)
        verdict = None
        if self._validator is not None and request.validation:
            verdict = self._validator.validate(request.prompt_text, text, finish.reason)
        return Answer(
            id=request.generation.request_id,
            model=self.model,
            created=self.created,
            text=text if verdict is None else verdict.text,
            deltas=tuple(self._texts),
            finish=finish,
            streaming=request.streaming,
            logprobs=tuple(self._logprobs),
            warnings=self.warnings,
            verdict=verdict,
        )

    def abort(self) -> None:
        """Stop the generation now; harmless once it is over."""
        self._stream.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()


class Pipeline:
    """Joins an engine and a validator; holds nothing between requests.

    Jobs, the emulator, batches and the OpenAI routes all enter here, so what is tested through one
    of them is what runs in the others.
    """

    def __init__(self, engine: Engine, model_name: str, validator: Validator | None = None) -> None:
        self.engine = engine
        self.model_name = model_name
        self._validator = validator

    async def open(self, request: TextRequest) -> Running:
        """Start a request and wait for its first text, or for its end. Raises EngineError."""
        stream = await self.engine.generate(request.generation)
        try:
            first: list[Delta] = await anext(stream, [])
        except BaseException:
            stream.abort()
            raise
        running = Running(request, stream, first, self.model_name, self._validator)
        for warning in running.warnings:
            logger.warning("request %s: %s", request.generation.request_id, warning)
        return running

    async def run(self, request: TextRequest) -> Answer:
        """Return the whole answer to a request. Raises EngineError."""
        async with await self.open(request) as running:
            async for _ in running.batches():
                pass
            return running.answer()

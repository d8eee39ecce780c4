"""One answer on its way from the engine to its reader."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Self

from engine import Delta, Finish, FinishReason, TokenLogprob, TokenStream, Usage
from engine.abortable import Abortable
from handler.completed_answer import CompletedAnswer
from handler.content_log import log_answer
from handler.offload import run_in_thread
from handler.redaction import redact_deltas
from handler.request import TextRequest
from validation import Removal, Subject, Validator, Verdict

logger = logging.getLogger(__name__)


class ActiveGeneration(Abortable):
    """One answer on its way: iterate the batches, then take the `answer`.

    The first batch has been waited for when it is made, so an error that comes before any text is
    raised where an HTTP status can still be chosen (R30). Leaving the `async with` block stops the
    generation. Owned by the task that made it.
    """

    def __init__(
        self,
        request: TextRequest,
        stream: TokenStream | BlockedStream,
        first: list[Delta],
        model: str,
        validator: Validator | None,
        refusal: Verdict | None = None,
    ) -> None:
        self.request = request
        self.model = model
        self.created = int(time.time())
        self.warnings = request.warnings + stream.warnings
        log_warnings(request, self.warnings)
        self._stream = stream
        self._first = first
        self._validator = validator
        self._refusal = refusal
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._hidden: list[float] = []
        self._redacted: dict[str, int] = {}

    def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Delta]]:
        """Yield what has come, at once the first time, then at most every `interval_s`.

        A consumer that is slower than the model finds longer batches. Where something is to be
        redacted all comes in one batch at the end, for only a whole text tells what it is. Raises
        EngineError.
        """
        arriving = self._arriving(interval_s)
        return arriving if self.request.options.redactor is None else self._redacting(arriving)

    async def _redacting(self, arriving: AsyncIterator[list[Delta]]) -> AsyncIterator[list[Delta]]:
        deltas = [delta async for batch in arriving for delta in batch]
        _, removals = await self._redact("".join(self._texts))
        if removals:
            self._texts = redact_deltas(self._texts, removals)
            deltas = [Delta(text) for text in self._texts]
            # They would spell it out again.
            self._hidden, self._logprobs = [each.logprob for each in self._logprobs], []
            if self._hidden and self.request.tells_logprobs:
                self._warn("logprobs were left out, for they would tell what was redacted")
        if deltas:
            yield deltas

    async def _redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        redactor = self.request.options.redactor
        if redactor is None:
            return text, ()
        text, removals = await run_in_thread(len(text), lambda: redactor.redact(text))
        for removal in removals:
            kind = removal.rule.removeprefix("pii_")
            self._redacted[kind] = self._redacted.get(kind, 0) + 1
        return text, removals

    async def _arriving(self, interval_s: float) -> AsyncIterator[list[Delta]]:
        batch = self._first
        loop = asyncio.get_running_loop()
        while batch:
            sent = loop.time()
            self._keep(batch)
            yield batch
            if interval_s and (rest := sent + interval_s - loop.time()) > 0:
                await asyncio.sleep(rest)
            batch = await anext(self._stream, [])

    async def whole(self) -> CompletedAnswer:
        """Return the finished answer, of which nothing was read before. Raises EngineError."""
        if self.request.options.redactor is not None:
            async for _ in self.batches():
                pass
        else:
            self._keep(self._first)
            async for batch in self._stream:
                self._keep(batch)
        return await self.answer()

    def _keep(self, batch: list[Delta]) -> None:
        for text, logprob in batch:
            if text:
                self._texts.append(text)
            if logprob is not None:
                self._logprobs.append(logprob)

    async def answer(self) -> CompletedAnswer:
        """Return the finished answer, validated; only after `batches` has ended."""
        finish = self._stream.result
        if finish is None:
            raise RuntimeError("the answer is not finished")
        request = self.request
        text = raw = "".join(self._texts)
        verdict = await self._judge(raw, finish) if request.validation else None
        if verdict is not None and verdict.text != raw:
            # What the sanitiser took out may have stood in the middle of something personal.
            text, _ = await self._redact(verdict.text)
        answer = CompletedAnswer(
            id=request.generation.request_id,
            model=self.model,
            created=self.created,
            text=text,
            deltas=tuple(self._texts),
            finish=finish,
            streaming=request.streaming,
            logprobs=tuple(self._logprobs),
            hidden_logprobs=tuple(self._hidden),
            warnings=self.warnings,
            verdict=verdict,
            redacted=self._redacted,
        )
        log_answer(answer)
        return answer

    async def _judge(self, text: str, finish: Finish) -> Verdict | None:
        validator, options = self._validator, self.request.options
        if self._refusal is not None or validator is None:
            return self._refusal
        prompt, system = self.request.prompt_text, self.request.system_text
        redactor, reason = options.redactor, finish.reason.value

        def look() -> Verdict:
            asked, told = prompt, system
            if redactor is not None:
                # An echo of them was redacted too, and could not be told otherwise.
                asked, told = redactor.redact(prompt)[0], redactor.redact(system)[0]
            subject = Subject(prompt=asked, text=text, finish_reason=reason, system=told)
            return validator.validate(subject, options)

        # Checks that are asked for may have a model to load first.
        chars = None if options.checks else len(prompt) + len(system) + len(text)
        return await run_in_thread(chars, look)

    def _warn(self, warning: str) -> None:
        """Have the client and the log told of something that became of the request."""
        self.warnings += (warning,)
        log_warnings(self.request, (warning,))

    def deltas_after(self, after: int) -> list[str]:
        """Return what has come behind the first `after` deltas, for somebody who only looks.

        Nothing where something is to be redacted: only a whole text tells what it is.
        """
        return [] if self.request.options.redactor is not None else self._texts[after:]

    def abort(self) -> None:
        """Stop the generation now; harmless once it is over."""
        self._stream.abort()


class BlockedStream:
    """The stream of a request that is not answered: at its end from the start."""

    result: Finish | None = Finish(reason=FinishReason.CONTENT_FILTER, usage=Usage(0, 0))
    warnings: tuple[str, ...] = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        raise StopAsyncIteration

    def abort(self) -> None:
        """Nothing runs."""


def log_warnings(request: TextRequest, warnings: Sequence[str]) -> None:
    """Write a line for each thing that is not as a request wants it (R16, R55)."""
    for warning in warnings:
        logger.warning("request %s: %s", request.generation.request_id, warning)

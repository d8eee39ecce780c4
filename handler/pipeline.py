"""The pipeline every door leads to: generate, collect, validate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar

from engine import (
    Delta,
    Engine,
    Finish,
    FinishReason,
    GenerationRequest,
    TokenLogprob,
    TokenStream,
    Usage,
)
from engine.errors import EngineError
from handler.errors import InvalidRequest
from handler.redaction import redacted
from handler.request import TextRequest
from validation import Issue, Removal, Subject, Validator, Verdict

logger = logging.getLogger(__name__)

T = TypeVar("T")

# From here on looking at a text takes long enough for the event loop to notice.
_LONG_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished answer.

    `text` is what the client gets, after sanitising; `deltas` are the model's own words as they
    came, which joined are its raw text (R46), without what was `redacted`, counted by kind.
    `created` is seconds since the epoch. `discarded` is the answer that this one was generated
    again for.
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
    redacted: Mapping[str, int] = field(default_factory=dict)
    discarded: Answer | None = None

    @property
    def raw_text(self) -> str:
        """The model's text before sanitising."""
        return "".join(self.deltas)

    @property
    def sanitized(self) -> bool:
        """Whether validation changed the text (R47)."""
        return self.text != self.raw_text

    @property
    def blocked(self) -> bool:
        """Whether the request was refused, and nothing generated (R56)."""
        return self.finish.reason is FinishReason.CONTENT_FILTER


class Refusal:
    """The stream of a request that is not answered: at its end from the start."""

    result: Finish | None = Finish(reason=FinishReason.CONTENT_FILTER, usage=Usage(0, 0))
    warnings: tuple[str, ...] = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        raise StopAsyncIteration

    def abort(self) -> None:
        """Nothing runs."""


class Running:
    """One answer on its way: iterate the batches, then take the `answer`.

    The first batch has been waited for when it is made, so an error that comes before any text is
    raised where an HTTP status can still be chosen (R30). Leaving the `async with` block stops the
    generation. Owned by the task that made it.
    """

    def __init__(
        self,
        request: TextRequest,
        stream: TokenStream | Refusal,
        first: list[Delta],
        model: str,
        validator: Validator | None,
        refusal: Verdict | None = None,
    ) -> None:
        self.request = request
        self.model = model
        self.created = int(time.time())
        self.warnings = request.warnings + stream.warnings
        self._stream = stream
        self._first = first
        self._validator = validator
        self._refusal = refusal
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._redacted: Counter[str] = Counter()

    def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Delta]]:
        """Yield what has come, at once the first time, then at most every `interval_s`.

        A consumer that is slower than the model finds longer batches. Where something is to be
        redacted all comes in one batch at the end, for only a whole text tells what it is. Raises
        EngineError.
        """
        arriving = self._arriving(interval_s)
        return arriving if self.request.options.redactor is None else self._redacting(arriving)

    async def _redacting(self, arriving: AsyncIterator[list[Delta]]) -> AsyncIterator[list[Delta]]:
        async for _ in arriving:
            pass
        _, removals = await self._redact("".join(self._texts))
        if removals:
            self._texts = redacted(self._texts, removals)
            # They would spell it out again.
            self._logprobs = []
        if self._texts:
            yield [Delta(text) for text in self._texts]

    async def _redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        redactor = self.request.options.redactor
        if redactor is None:
            return text, ()
        text, removals = await _in_thread(len(text), lambda: redactor.redact(text))
        self._redacted.update(removal.rule.removeprefix("pii_") for removal in removals)
        return text, removals

    async def _arriving(self, interval_s: float) -> AsyncIterator[list[Delta]]:
        batch = self._first
        loop = asyncio.get_running_loop()
        while batch:
            sent = loop.time()
            self._texts += [delta.text for delta in batch if delta.text]
            self._logprobs += [delta.logprob for delta in batch if delta.logprob is not None]
            yield batch
            if interval_s and (rest := sent + interval_s - loop.time()) > 0:
                await asyncio.sleep(rest)
            batch = await anext(self._stream, [])

    async def answer(self) -> Answer:
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
        return Answer(
            id=request.generation.request_id,
            model=self.model,
            created=self.created,
            text=text,
            deltas=tuple(self._texts),
            finish=finish,
            streaming=request.streaming,
            logprobs=tuple(self._logprobs),
            warnings=self.warnings,
            verdict=verdict,
            redacted=dict(self._redacted),
        )

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
        return await _in_thread(chars, look)

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
        """Start a request and wait for its first text, or for its end.

        Raises:
            EngineError: what kept it from starting.
            InvalidRequest: it cannot be told whether the request is blocked.
        """
        refusal = await self._refuse(request)
        if refusal is not None:
            return Running(request, Refusal(), [], self.model_name, self._validator, refusal)
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

    async def _refuse(self, request: TextRequest) -> Verdict | None:
        """Return why a request is not to be answered; asked before anything is generated (R56)."""
        options, validator = request.options, self._validator
        if not options.blockers or validator is None:
            return None
        if isinstance(request.generation.prompt, tuple):
            raise InvalidRequest(
                "prompt must be text where intents or terms are blocked, got token ids", "prompt"
            )
        prompt, said = request.prompt_text, request.user_text
        return await _in_thread(len(said), lambda: validator.refuse(prompt, said, options))

    async def run(self, request: TextRequest) -> Answer:
        """Return the whole answer to a request, the better one of two where a verdict asks for it.

        Raises:
            EngineError: the request failed; a second try that fails is only a warning.
            InvalidRequest: it cannot be told whether the request is blocked.
        """
        started = time.monotonic()
        answer = await self._whole(request)
        verdict = answer.verdict
        if verdict is None or not (verdict.retry and request.options.regenerate):
            return answer
        left_s = request.generation.timeout_s
        left_s = self.engine.request_timeout_s if left_s is None else left_s
        left_s -= time.monotonic() - started
        generation = _once_more(request.generation, left_s)
        if generation is None:
            return answer
        try:
            second = await self._whole(replace(request, generation=generation))
        except EngineError as error:
            warning = f"the answer was not generated again: {error.message}"
            return replace(answer, warnings=(*answer.warnings, warning))
        if len(_issues(second)) >= len(_issues(answer)):
            return replace(answer, discarded=second)
        return replace(second, discarded=answer)

    async def _whole(self, request: TextRequest) -> Answer:
        async with await self.open(request) as running:
            async for _ in running.batches():
                pass
            return await running.answer()


def _issues(answer: Answer) -> tuple[Issue, ...]:
    return answer.verdict.issues if answer.verdict is not None else ()


def _once_more(request: GenerationRequest, timeout_s: float) -> GenerationRequest | None:
    """Return the request for another answer; None where there is no time or no other answer."""
    sampling = request.sampling
    greedy = sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1
    if greedy or timeout_s <= 0:
        return None
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + 1) % 2**63)
    return replace(request, sampling=sampling, timeout_s=timeout_s)


async def _in_thread(chars: int | None, look: Callable[[], T]) -> T:
    """Look at text of that many characters, in a thread if they are many or it may take long."""
    if chars is not None and chars < _LONG_CHARS:
        return look()
    return await asyncio.to_thread(look)

"""Collect one running answer from the engine, redact it and validate it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from engine import Delta, Finish, FinishReason, TokenLogprob, TokenStream, Usage
from engine.reply.parser import read_reply
from engine.reply.reply import Reply
from engine.reply.reply_format import REASONING_ONLY
from engine.runs.abortable import Abortable
from handler.generation.completed_answer import CompletedAnswer
from handler.generation.content_log import log_answer
from handler.generation.held_constraint import check_broken, check_free_calls
from handler.generation.offload import run_in_thread
from handler.generation.reasoning_budget import BudgetedStream
from handler.generation.redaction import redact_deltas
from handler.input.request import TextRequest
from validation import Removal, Subject, Validator, Verdict

logger = logging.getLogger(__name__)


class ActiveGeneration(Abortable):
    """One running answer: iterate `batches`, then call `build_answer`; or call `collect_answer`.

    Its first batch has arrived before it is created, so an error before any text is raised while an
    HTTP status can still be chosen. Leaving the `async with` block stops the generation.
    Owned by the task that created it.

    `block_verdict` is the verdict of a blocked request, whose stream is a `BlockedStream`.
    `has_tokenizer` is whether the engine could continue an answer that ended with its reasoning.
    """

    def __init__(
        self,
        request: TextRequest,
        stream: TokenStream | BudgetedStream | BlockedStream,
        first_batch: list[Delta],
        model: str,
        validator: Validator | None,
        block_verdict: Verdict | None = None,
        *,
        has_tokenizer: bool = True,
    ) -> None:
        self.request = request
        self.model = model
        self.created = int(time.time())
        self.starts_in_reasoning = stream.starts_in_reasoning
        self.warnings = request.warnings + stream.warnings
        if self.warnings:
            log_warnings(request, self.warnings)
        self._stream = stream
        self._first_batch = first_batch
        self._validator = validator
        self._block_verdict = block_verdict
        self._has_tokenizer = has_tokenizer
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._hidden_logprobs: list[float] = []
        self._redaction_counts: dict[str, int] = {}

    def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Delta]]:
        """Yield the first batch immediately, then new deltas at most every `interval_s` seconds.

        A consumer that is slower than the model gets longer batches. With redaction there is one
        batch, at the end, because personal data can only be recognised in the complete text. Raises
        EngineError.
        """
        batches = self._batches(interval_s)
        return batches if self.request.options.redactor is None else self._redact_all(batches)

    async def _redact_all(self, batches: AsyncIterator[list[Delta]]) -> AsyncIterator[list[Delta]]:
        deltas = [delta async for batch in batches for delta in batch]
        _, removals = await self._redact("".join(self._texts))
        if removals:
            self._texts = redact_deltas(self._texts, removals)
            deltas = [Delta(text) for text in self._texts]
            # The tokens of the log-probabilities spell out the redacted text.
            self._hidden_logprobs, self._logprobs = [each.logprob for each in self._logprobs], []
            if self._hidden_logprobs and self.request.returns_logprobs:
                self._warn("logprobs were left out, because they would reveal redacted text")
        if deltas:
            yield deltas

    async def _redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        redactor = self.request.options.redactor
        if redactor is None:
            return text, ()
        text, removals = await run_in_thread(len(text), lambda: redactor.redact(text))
        for removal in removals:
            kind = removal.rule.removeprefix("pii_")
            self._redaction_counts[kind] = self._redaction_counts.get(kind, 0) + 1
        return text, removals

    async def _batches(self, interval_s: float) -> AsyncIterator[list[Delta]]:
        batch = self._first_batch
        loop = asyncio.get_running_loop()
        while batch:
            sent_at = loop.time()
            self._record(batch)
            yield batch
            if interval_s and (pause_s := sent_at + interval_s - loop.time()) > 0:
                await asyncio.sleep(pause_s)
            batch = await anext(self._stream, [])

    async def collect_answer(self) -> CompletedAnswer:
        """Read the whole generation and return its answer; `batches` must not have been read.

        Raises EngineError.
        """
        if self.request.options.redactor is not None:
            async for _ in self.batches():
                pass
        else:
            self._record(self._first_batch)
            async for batch in self._stream:
                self._record(batch)
        return await self.build_answer()

    def _record(self, batch: list[Delta]) -> None:
        for text, logprob in batch:
            if text:
                self._texts.append(text)
            if logprob is not None:
                self._logprobs.append(logprob)

    async def build_answer(self) -> CompletedAnswer:
        """Validate the text and return the answer. Call it only after `batches` has ended."""
        finish = self._stream.result
        if finish is None:
            raise RuntimeError("the answer is not finished")
        if finish.grammar_break is not None:
            # The engine has not held the answer to its constraint to the end.
            await self._add_check(partial(check_broken, after_chars=finish.grammar_break))
        for warning in finish.warnings:
            self._warn(warning)
        output = "".join(self._texts)
        reply = Reply(text=output)
        if self.request.reply_format is not None:
            reply = await run_in_thread(len(output), partial(self._read_reply, output))
        self._warn_about_open_reasoning(reply, finish)
        if reply.calls:
            await self._add_check(partial(check_free_calls, calls=reply.calls))
        request = self.request
        text = reply.text
        verdict = await self._validate(reply, finish) if request.validation else None
        if verdict is not None and verdict.text != text:
            # The sanitizer may have removed text from within personal data, which is complete now.
            text, _ = await self._redact(verdict.text)
        answer = CompletedAnswer(
            id=request.generation.request_id,
            model=self.model,
            created=self.created,
            reply=reply,
            text=text,
            deltas=tuple(self._texts),
            finish=finish,
            streaming=request.streaming,
            logprobs=tuple(self._logprobs),
            hidden_logprobs=tuple(self._hidden_logprobs),
            warnings=self.warnings,
            verdict=verdict,
            redacted=self._redaction_counts,
        )
        log_answer(answer)
        return answer

    def _warn_about_open_reasoning(self, reply: Reply, finish: Finish) -> None:
        """Warn of an answer that is nothing but reasoning, and that a tokenizer would continue.

        RKLLM 1.3.0 ends a run at the end of the reasoning.
        """
        is_complete = bool(reply.text.strip() or reply.calls or not reply.reasoning)
        is_cut = finish.reason is not FinishReason.STOP or finish.stop_reason is not None
        if not (self._has_tokenizer or is_complete or is_cut):
            self._warn(
                "the answer ended with the model's reasoning, and the engine cannot continue it "
                "without a tokenizer beside the model"
            )

    async def _add_check(self, add: Callable[[TextRequest], TextRequest]) -> None:
        """Add a check of the finished answer to the request, and its warnings to the answer."""
        known = self.request.warnings
        self.request = await asyncio.to_thread(add, self.request)
        for warning in self.request.warnings:
            if warning not in known:
                self._warn(warning)

    def _read_reply(self, output: str) -> Reply:
        reply_format = self.request.reply_format or REASONING_ONLY
        return read_reply(output, reply_format, starts_in_reasoning=self.starts_in_reasoning)

    async def _validate(self, reply: Reply, finish: Finish) -> Verdict | None:
        """Return the verdict on the reply's text, with the spans of its removals in the output."""
        validator, options = self._validator, self.request.options
        if self._block_verdict is not None or validator is None:
            return self._block_verdict
        prompt, system = self.request.prompt_text, self.request.system_text
        reply_format = self.request.reply_format
        redactor, reason = options.redactor, finish.reason.value

        def validate() -> Verdict:
            """Validate the answer, with the personal data of the prompts redacted."""
            subject_prompt, subject_system = prompt, system
            if redactor is not None:
                # An echo of the prompts in the answer is redacted, and must still be recognised.
                subject_prompt = redactor.redact(prompt)[0]
                subject_system = redactor.redact(system)[0]
            subject = Subject(
                prompt=subject_prompt,
                text=reply.text,
                finish_reason=reason,
                system=subject_system,
                calls=tuple(call.to_json() for call in reply.calls),
                constrains_calls=reply_format is not None and reply_format.constrains_calls,
            )
            verdict = validator.validate(subject, options)
            if not verdict.removals:
                return verdict
            return replace(verdict, removals=_move_spans(verdict.removals, reply))

        # The requested checks may have to load a model first.
        chars = None if options.checks else len(prompt) + len(system) + len(reply.text)
        return await run_in_thread(chars, validate)

    def _warn(self, warning: str) -> None:
        """Add a warning to the answer and to the log."""
        self.warnings += (warning,)
        log_warnings(self.request, (warning,))

    def deltas_after(self, count: int) -> list[str]:
        """Return the texts after the first `count` deltas, for observers such as the console.

        With redaction the list is empty, because personal data can only be recognised in the
        complete text.
        """
        return [] if self.request.options.redactor is not None else self._texts[count:]

    def abort(self) -> None:
        """Stop the generation now; has no effect after its end."""
        self._stream.abort()


def _move_spans(removals: Sequence[Removal], reply: Reply) -> tuple[Removal, ...]:
    """Return removals from the text with their spans in the output."""
    if reply.is_all_text:
        return tuple(removals)
    spans = (reply.output_span(removal.start, removal.end) for removal in removals)
    return tuple(
        removal._replace(start=start, end=end)
        for removal, (start, end) in zip(removals, spans, strict=True)
    )


class BlockedStream:
    """The token stream of a blocked request: it has no tokens and has ended already."""

    result: Finish | None = Finish(reason=FinishReason.CONTENT_FILTER, usage=Usage(0, 0))
    warnings: tuple[str, ...] = ()
    starts_in_reasoning = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        raise StopAsyncIteration

    def abort(self) -> None:
        """Do nothing: there is no generation to stop."""


def log_warnings(request: TextRequest, warnings: Sequence[str]) -> None:
    """Log each warning about what a request asked for and did not get."""
    for warning in warnings:
        logger.warning("request %s: %s", request.generation.request_id, warning)

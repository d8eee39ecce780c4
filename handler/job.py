"""One RunPod job to its output, in both of the ways the SDK can call a handler."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import orjson

from engine import Delta, Slot
from engine.errors import EngineCrashed, EngineReplaced, EngineRestarting, EngineUnavailable
from engine.request import TemplateMode
from handler import limits
from handler.errors import ErrorInfo, ResultTooLarge, error_info
from handler.models import ModelRegistry
from handler.offload import check_body
from handler.openai.events import stream_events
from handler.openai.service import OpenAIService
from handler.options import NO_DEFAULTS, OptionsReader
from handler.pipeline import Pipeline
from handler.request import OpenAIRequest, TextRequest, parse_job
from handler.response import encode_answer, encode_partial
from handler.results import ResultDelivery, ResultStore
from handler.sampling import describe_value

logger = logging.getLogger(__name__)

_REPEATED_NOTE = "deltas and tokens were left out of the final output, which would exceed {:g} MB"
_TEXT_NOTE = "the text was left out of the last chunk, which would exceed {:g} MB; /status has it"

Put = Callable[[bytes], Awaitable[object]]


class _Output(NamedTuple):
    """A chunk to stream; the last one of a job also carries the job's whole JSON."""

    chunk: Any
    whole: Any = None


class Interruption(Enum):
    """Why a job has no result of its own and should run again."""

    # It was running when the engine crashed, and may be the reason.
    CRASH = auto()
    # The engine was ended because of another request, is being restarted, or is dead.
    NO_ENGINE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended, for a queue that keeps JSON: its output, encoded, or the error alone.

    `retryable` says of an error that another try may end better; `interruption` that the engine
    failed under the job, which a queue can run again instead of ending it with the error; `reason`
    is then the error as one sentence, whatever form the job's sender expects.
    """

    output: bytes | None = None
    error: str | None = None
    retryable: bool = False
    interruption: Interruption | None = None
    reason: str | None = None


class JobHandler:
    """Runs jobs, without importing the SDK, so that the local worker and batches use it as well.

    A bad job or a failed engine is a result with one `error` string and not an exception, which
    the SDK would pass to the client as a traceback. The handler keeps no state between jobs, and
    cancelling the task that runs a job stops its generation.
    """

    def __init__(
        self,
        models: Pipeline | ModelRegistry,
        options: OptionsReader = NO_DEFAULTS,
        *,
        max_tokens: int | None = None,
        validation: bool = True,
        chat_template: TemplateMode = "auto",
        interval_s: float = 0.05,
        openai: OpenAIService | None = None,
        results: ResultStore | None = None,
    ) -> None:
        self._models = models if isinstance(models, ModelRegistry) else ModelRegistry(models)
        self._options = options
        self._openai = openai or OpenAIService(self._models, options, max_tokens=max_tokens)
        self._validation = validation
        self._chat_template = chat_template
        self._interval_s = interval_s
        self._results = results or ResultStore()

    @property
    def is_dead(self) -> bool:
        """Whether no model will answer any more, so that the worker should be replaced."""
        return self._models.is_dead

    async def run(self, job: Mapping[str, Any], slot: Slot | None = None) -> Any:
        """Return a job's one output for the SDK (STREAM_MODE=aggregate), or `{"error": …}`.

        A streamed OpenAI call returns its server-sent events as one string, because its client
        understands nothing else.
        """
        return self.sdk_output(await self.result(job, slot, size_of=limits.wire_size))

    def sdk_output(self, result: JobResult) -> Any:
        """Return a result as the SDK takes it: the output, or `{"error": …}`."""
        if result.output is None:
            return self._failure(result.error)
        return orjson.loads(result.output)

    async def result(
        self,
        job: Mapping[str, Any],
        slot: Slot | None = None,
        timeout_s: float | None = None,
        put: Put | None = None,
        *,
        as_list: bool = False,
        size_of: Callable[[Any], int] | None = None,
    ) -> JobResult:
        """Run a job and return its output, encoded once.

        A job that asks to stream passes its chunks to `put` as they come, the whole JSON last, and
        returns that JSON. With `as_list` (STREAM_MODE=generator) every job passes its chunks to
        `put` and returns the list of them. `slot` is a reserved slot, which its owner releases if
        the job does not use it; `timeout_s` replaces the engine's own limit; `size_of` measures an
        output as its receiver will, in bytes, where that is not its JSON here.
        """
        request: TextRequest | OpenAIRequest | None = None
        try:
            request = await check_body(job.get("input"), partial(self._parse, job, timeout_s))
            delivery = self._delivery(job, request)
            if put is not None and as_list:
                return JobResult(output=await self._list(request, delivery, slot, put))
            if put is not None and request.streaming:
                output = await self._streamed(request, slot, put)
            else:
                output = await self._output(request, slot)
            body = orjson.dumps(output)
            size = len(body) if size_of is None else size_of({"output": output})
            delivered = await delivery.whole(output, size)
            if delivered is output:
                return JobResult(output=body)
            pointer = orjson.dumps(delivered)
            if put is not None and request.streaming:
                await put(pointer)
            return JobResult(output=pointer)
        except Exception as error:
            failure = error_info(error)
            return JobResult(
                error=_message(failure, request),
                retryable=failure.mapping.retryable,
                interruption=self._interruption(error),
                reason=failure.message,
            )

    async def stream(
        self,
        job: Mapping[str, Any],
        slot: Slot | None = None,
        *,
        keep: Callable[[bool], object] = lambda kept: None,
        interrupted: Callable[[Interruption, str], bool] = lambda kind, reason: False,
    ) -> AsyncGenerator[Any, None]:
        """Yield a job's outputs for the SDK as they come (STREAM_MODE=generator).

        A text job yields its partial outputs and the whole JSON last. A streamed OpenAI call yields
        text of whole events and nothing else; a call that is not streamed yields its one body. A
        failure is yielded as `{"error": …}`, and the SDK then ends the job with it.

        `keep` is called before each output and is given whether it belongs to the list that is the
        job's result: what goes to a bucket does not, and the pointer to it comes last.

        `interrupted` is called with the reason when the engine fails before the first output. If
        it returns True, the stream ends without an output, and the caller runs the job again.
        """
        request: TextRequest | OpenAIRequest | None = None
        has_begun = False
        try:
            request = await check_body(job.get("input"), partial(self._parse, job))
            delivery = self._delivery(job, request)
            async with aclosing(self._chunks(request, delivery, slot, _sdk_body)) as chunks:
                async for output, _, is_kept in chunks:
                    has_begun = True
                    keep(is_kept)
                    yield output
        except Exception as error:
            failure, kind = error_info(error), self._interruption(error)
            if kind is not None and not has_begun and interrupted(kind, failure.message):
                return
            keep(True)
            yield self._failure(_message(failure, request))

    def check(self, job: Mapping[str, Any]) -> None:
        """Validate a job without running it. Raises InvalidRequest or NotFound."""
        request = self._parse(job)
        self._delivery(job, request)
        if isinstance(request, OpenAIRequest):
            self._openai.check_call(request.route, request.body)
        else:
            self._pipeline(request)

    def _parse(
        self, job: Mapping[str, Any], timeout_s: float | None = None
    ) -> TextRequest | OpenAIRequest:
        several = self._models.has_several
        found = parse_job(
            job,
            self._options,
            validation=self._validation,
            chat_template=self._chat_template,
            chooses_model=several,
        )
        if isinstance(found, TextRequest) and not several:
            found = self._with_model_warning(found, job["input"].get("model"))
        return found if timeout_s is None else found.within(timeout_s)

    def _with_model_warning(self, request: TextRequest, model: Any) -> TextRequest:
        """Return the request with a warning if it names a model that is not the one served."""
        names = self._models.names
        if model is None or model in names:
            return request
        warning = (
            f"input.model was ignored: {describe_value(model)} is not served, {names[0]} answers"
        )
        return replace(request, warnings=(*request.warnings, warning))

    def _pipeline(self, request: TextRequest) -> Pipeline:
        return self._models.find(request.model, "input.model")

    def _delivery(
        self, job: Mapping[str, Any], request: TextRequest | OpenAIRequest
    ) -> ResultDelivery:
        return self._results.delivery(job, openai=isinstance(request, OpenAIRequest))

    async def _output(self, request: TextRequest | OpenAIRequest, slot: Slot | None) -> Any:
        if isinstance(request, TextRequest):
            return encode_answer(await self._pipeline(request).run(request, slot))
        return await self._run_openai(request, slot)

    async def _list(
        self,
        request: TextRequest | OpenAIRequest,
        delivery: ResultDelivery,
        slot: Slot | None,
        put: Put,
    ) -> bytes:
        """Pass each chunk to `put`; return the list of those that are the job's result."""
        kept: list[bytes] = []
        async with aclosing(self._chunks(request, delivery, slot, orjson.dumps)) as chunks:
            async for _, body, is_kept in chunks:
                if is_kept:
                    kept.append(body)
                await put(body)
        return b"[%b]" % b",".join(kept)

    async def _chunks(
        self,
        request: TextRequest | OpenAIRequest,
        delivery: ResultDelivery,
        slot: Slot | None,
        encode_answer: Callable[[Any], bytes],
    ) -> AsyncGenerator[tuple[Any, bytes, bool], None]:
        """Yield each chunk, its encoding, and whether it is part of the result as it is sent."""
        async with aclosing(self._outputs(request, slot, may_hold_back=False)) as outputs:
            async for output, _ in outputs:
                body = encode_answer(output)
                self._results.sizes.check_chunk(len(body))
                yield output, body, delivery.add(output, len(body))
        if (pointer := await delivery.end()) is not None:
            yield pointer, encode_answer(pointer), True

    async def _streamed(
        self, request: TextRequest | OpenAIRequest, slot: Slot | None, put: Put
    ) -> Any:
        """Pass the chunks of a job to `put` and return its whole output.

        A chunk that is refused ends the stream of a text job, not the job: its output does not
        depend on the stream, and a warning in it gives the reason. An OpenAI call fails, because
        the stream is its answer and must not look complete.
        """
        texts: list[str] = []
        whole: Any = None
        refused: str | None = None
        async with aclosing(self._outputs(request, slot, may_hold_back=True)) as outputs:
            async for chunk, output in outputs:
                whole = output
                if isinstance(chunk, str):
                    texts.append(chunk)
                if refused is not None:
                    continue
                body = orjson.dumps(chunk)
                try:
                    self._results.sizes.check_chunk(len(body))
                    await put(body)
                except ResultTooLarge as error:
                    if isinstance(request, OpenAIRequest):
                        raise
                    refused = f"the rest of the answer was not streamed: {error}"
        if whole is None:
            return "".join(texts)
        if refused is not None:
            logger.warning("%s", refused)
            whole.setdefault("warnings", []).append(refused)
        return whole

    def _outputs(
        self, request: TextRequest | OpenAIRequest, slot: Slot | None, *, may_hold_back: bool
    ) -> AsyncGenerator[_Output, None]:
        if isinstance(request, TextRequest):
            return self._stream_text(request, slot, may_hold_back=may_hold_back)
        return self._stream_openai(request, slot)

    async def _run_openai(self, request: OpenAIRequest, slot: Slot | None) -> Any:
        texts: list[str] = []
        async with aclosing(self._stream_openai(request, slot)) as outputs:
            async for chunk, whole in outputs:
                if whole is not None:
                    return whole
                texts.append(chunk)
        return "".join(texts)

    async def _stream_text(
        self, request: TextRequest, slot: Slot | None, *, may_hold_back: bool
    ) -> AsyncGenerator[_Output, None]:
        """Yield partial outputs as they come, then the whole JSON.

        `may_hold_back` is set where the result is that JSON alone. Then an answer that may be
        generated again is streamed at its end, and a last chunk that is too large goes without its
        text, which the chunks before it have.
        """
        sizes = self._results.sizes
        pipeline = self._pipeline(request)
        if not request.streaming:
            final = encode_answer(await pipeline.run(request, slot))
        elif may_hold_back and request.options.regenerate:
            answer = await pipeline.run(request, slot)
            for part in limits.split_deltas(
                [Delta(text) for text in answer.deltas], sizes.partial_chars
            ):
                yield _Output(encode_partial(part))
            final = encode_answer(answer)
        else:
            async with await pipeline.open(request, slot) as running:
                async for batch in running.batches(self._interval_s):
                    for part in limits.split_deltas(batch, sizes.partial_chars):
                        yield _Output(encode_partial(part))
                final = encode_answer(await running.answer())
        last = final
        if limits.wire_size({"output": last}) > sizes.chunk:
            last = _without(final, ("deltas", "tokens"), _REPEATED_NOTE.format(sizes.chunk / 1e6))
            if may_hold_back and limits.wire_size({"output": last}) > sizes.chunk:
                note = _TEXT_NOTE.format(sizes.chunk / 1e6)
                last = _without(final, ("text", "deltas", "tokens"), note)
        yield _Output(last, final)

    async def _stream_openai(
        self, request: OpenAIRequest, slot: Slot | None
    ) -> AsyncGenerator[_Output, None]:
        body = await self._openai.answer_without_generation(request.route, request.body, slot)
        if body is not None:
            body = _with_warnings(body, request)
        else:
            call = await self._openai.parse_call_async(request.route, request.body)
            call.add_warnings(*request.warnings)
            call.timeout_s = request.timeout_s
            if call.streaming:
                part_chars = self._results.sizes.partial_chars
                async with await self._openai.open_stream(call, slot) as running:
                    async for block in stream_events(call, running, self._interval_s, part_chars):
                        yield _Output(block.decode())
                return
            body = await self._openai.complete(call, slot)
        yield _Output(body, body)

    def _interruption(self, error: Exception) -> Interruption | None:
        if isinstance(error, EngineReplaced | EngineRestarting):
            return Interruption.NO_ENGINE
        if isinstance(error, EngineCrashed):
            return Interruption.CRASH
        # With several models the others go on, and this one's jobs have to end.
        if isinstance(error, EngineUnavailable) and self.is_dead:
            return Interruption.NO_ENGINE
        return None

    def _failure(self, message: str | None) -> dict[str, Any]:
        output: dict[str, Any] = {"error": message}
        if self.is_dead:
            output["refresh_worker"] = True
        return output


def _sdk_body(output: Any) -> bytes:
    return limits.wire_body({"output": output})


def _without(output: dict[str, Any], names: tuple[str, ...], note: str) -> dict[str, Any]:
    """Return an output without some fields of its choice, with a warning that says so."""
    [choice] = output["choices"]
    choice = {name: value for name, value in choice.items() if name not in names}
    return {**output, "choices": [choice], "warnings": [*output.get("warnings", ()), note]}


def _with_warnings(body: dict[str, Any], request: OpenAIRequest) -> dict[str, Any]:
    if not request.warnings:
        return body
    return body | {"warnings": [*body.get("warnings", ()), *request.warnings]}


def _message(failure: ErrorInfo, request: TextRequest | OpenAIRequest | None) -> str:
    """Return the error message of a job, in the form its sender expects."""
    if isinstance(request, OpenAIRequest):
        return failure.openai_job_error()
    return failure.job_error()

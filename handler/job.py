"""One RunPod job to its output, in both of the ways the SDK can call a handler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from engine import Slot
from handler import limits
from handler.errors import Problem, problem
from handler.models import Models
from handler.openai.service import OpenAIService, events
from handler.options import PLAIN, OptionsReader
from handler.pipeline import Pipeline
from handler.request import OpenAIRequest, TextRequest, parse
from handler.response import encode, encode_partial
from handler.results import Delivery, Results

_SIZES_NOTE = "deltas and tokens were left out of the final output, which would exceed {:g} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a job ended, for a queue that keeps JSON: its output, encoded, or the error alone.

    `retryable` says of an error that another try may end better.
    """

    output: bytes | None = None
    error: str | None = None
    retryable: bool = False


class JobHandler:
    """Runs jobs; knows nothing of the SDK, so the emulator's own worker uses it as well.

    Never raises for a bad job or a failed engine: the SDK would put a traceback before the client.
    A failure is an output whose `error` is one string. Holds nothing between jobs; cancelling the
    task that runs a job stops its generation.
    """

    def __init__(
        self,
        models: Pipeline | Models,
        options: OptionsReader = PLAIN,
        *,
        max_tokens: int | None = None,
        validation: bool = True,
        interval_s: float = 0.05,
        openai: OpenAIService | None = None,
        results: Results | None = None,
    ) -> None:
        self._models = models if isinstance(models, Models) else Models(models)
        self._options = options
        self._openai = openai or OpenAIService(self._models, options, max_tokens=max_tokens)
        self._validation = validation
        self._interval_s = interval_s
        self._results = results or Results()

    @property
    def dead(self) -> bool:
        """Whether no model will answer any more, so that the worker should be replaced."""
        return self._models.dead

    async def run(self, job: Mapping[str, Any], slot: Slot | None = None) -> Any:
        """Return a job's whole output (STREAM_MODE=aggregate), or `{"error": …}`.

        A `slot` that was reserved for the job is used; its owner gives it back where it is not.

        A streamed OpenAI call answers with its server-sent events as one string, since there is no
        other way for a client that asked for a stream to understand the answer.
        """
        request: TextRequest | OpenAIRequest | None = None
        try:
            request = self._parse(job)
            delivery = self._delivery(job, request)
            output = await self._output(request, slot)
            output = await delivery.whole(output, limits.wire_size({"output": output}))
        except Exception as error:
            return self._failure(error, request)
        return output

    async def result(
        self, job: Mapping[str, Any], slot: Slot | None = None, timeout_s: float | None = None
    ) -> Result:
        """Return what `run` returns to the SDK, encoded once, for workers that have no SDK.

        A `timeout_s` takes the place of the engine's own limit to a generation.
        """
        request: TextRequest | OpenAIRequest | None = None
        try:
            request = self._parse(job, timeout_s)
            delivery = self._delivery(job, request)
            output = await self._output(request, slot)
            body = orjson.dumps(output)
            sent = await delivery.whole(output, len(body))
        except Exception as error:
            failure = problem(error)
            return Result(error=_told(failure, request), retryable=failure.row.retryable)
        return Result(output=body if sent is output else orjson.dumps(sent))

    def check(self, job: Mapping[str, Any]) -> None:
        """Find what is wrong with a job that nobody runs yet. Raises InvalidRequest or NotFound."""
        request = self._parse(job)
        self._delivery(job, request)
        if isinstance(request, OpenAIRequest):
            self._openai.check(request.route, request.body)
        else:
            self._pipeline(request)

    async def streamed_result(
        self,
        job: Mapping[str, Any],
        put: Callable[[bytes], Awaitable[object]],
        slot: Slot | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Hand each of `stream`'s outputs to `put`, encoded once; return the list of those kept.

        What `put` raises is the job's error; `timeout_s` is as in `result`.
        """
        request: TextRequest | OpenAIRequest | None = None
        chunks: list[bytes] = []
        try:
            request = self._parse(job, timeout_s)
            delivery = self._delivery(job, request)
            async with aclosing(self._outputs(request, slot)) as outputs:
                async for output in outputs:
                    chunk = orjson.dumps(output)
                    self._results.sizes.check_chunk(len(chunk))
                    if delivery.add(output, len(chunk)):
                        chunks.append(chunk)
                    await put(chunk)
            if (pointer := await delivery.end()) is not None:
                chunks.append(orjson.dumps(pointer))
                await put(chunks[-1])
        except Exception as error:
            return Result(error=_told(problem(error), request))
        return Result(output=b"[%b]" % b",".join(chunks))

    def _parse(
        self, job: Mapping[str, Any], timeout_s: float | None = None
    ) -> TextRequest | OpenAIRequest:
        several = self._models.several
        found = parse(job, self._options, validation=self._validation, chooses_model=several)
        return found if timeout_s is None else found.within(timeout_s)

    def _pipeline(self, request: TextRequest) -> Pipeline:
        return self._models.find(request.model, "input.model")

    def _delivery(self, job: Mapping[str, Any], request: TextRequest | OpenAIRequest) -> Delivery:
        return self._results.delivery(job, openai=isinstance(request, OpenAIRequest))

    async def _output(self, request: TextRequest | OpenAIRequest, slot: Slot | None) -> Any:
        if isinstance(request, TextRequest):
            return encode(await self._pipeline(request).run(request, slot))
        return await self._run_openai(request, slot)

    def _outputs(
        self, request: TextRequest | OpenAIRequest, slot: Slot | None
    ) -> AsyncGenerator[Any, None]:
        if isinstance(request, TextRequest):
            return self._stream_text(request, slot)
        return self._stream_openai(request, slot)

    async def _run_openai(self, request: OpenAIRequest, slot: Slot | None) -> Any:
        if (plain := await self._openai.plain(request.route, request.body, slot)) is not None:
            return plain
        codec = self._openai.codec(request.route, request.body)
        codec.timeout_s = request.timeout_s
        if not codec.streaming:
            return await self._openai.whole(codec, slot)
        async with await self._openai.open(codec, slot) as running:
            blocks = [block async for block in events(codec, running)]
        return b"".join(blocks).decode()

    async def stream(
        self,
        job: Mapping[str, Any],
        slot: Slot | None = None,
        *,
        keep: Callable[[bool], object] = lambda kept: None,
    ) -> AsyncGenerator[Any, None]:
        """Yield partial outputs as they come, the whole JSON last (STREAM_MODE=generator).

        A streamed OpenAI call yields text of whole events and nothing else; a call that is not
        streamed yields its one body. A failure is yielded as `{"error": …}`, and the SDK then ends
        the job with it.

        Before each of them `keep` is told whether it belongs to the list that is the job's result:
        what goes to a bucket does not, and the pointer to it comes last.
        """
        request: TextRequest | OpenAIRequest | None = None
        try:
            request = self._parse(job)
            delivery = self._delivery(job, request)
            async with aclosing(self._outputs(request, slot)) as outputs:
                async for output in outputs:
                    size = limits.wire_size({"output": output})
                    self._results.sizes.check_chunk(size)
                    keep(delivery.add(output, size))
                    yield output
            if (pointer := await delivery.end()) is not None:
                keep(True)
                yield pointer
        except Exception as error:
            keep(True)
            yield self._failure(error, request)

    async def _stream_text(
        self, request: TextRequest, slot: Slot | None
    ) -> AsyncGenerator[Any, None]:
        sizes = self._results.sizes
        if request.streaming:
            async with await self._pipeline(request).open(request, slot) as running:
                async for batch in running.batches(self._interval_s):
                    for part in limits.split(batch, sizes.partial_chars):
                        yield encode_partial(part)
                final = encode(await running.answer())
        else:
            final = encode(await self._pipeline(request).run(request, slot))
        if limits.wire_size({"output": final}) > sizes.chunk:
            choice = final["choices"][0]
            choice.pop("deltas", None)
            del choice["tokens"]
            final.setdefault("warnings", []).append(_SIZES_NOTE.format(sizes.chunk / 1e6))
        yield final

    async def _stream_openai(
        self, request: OpenAIRequest, slot: Slot | None
    ) -> AsyncGenerator[Any, None]:
        if (plain := await self._openai.plain(request.route, request.body, slot)) is not None:
            yield plain
            return
        codec = self._openai.codec(request.route, request.body)
        codec.timeout_s = request.timeout_s
        if not codec.streaming:
            yield await self._openai.whole(codec, slot)
            return
        async with await self._openai.open(codec, slot) as running:
            async for block in events(codec, running, self._interval_s):
                yield block.decode()

    def _failure(
        self, error: Exception, request: TextRequest | OpenAIRequest | None
    ) -> dict[str, Any]:
        output: dict[str, Any] = {"error": _told(problem(error), request)}
        if self.dead:
            output["refresh_worker"] = True
        return output


def _told(failure: Problem, request: TextRequest | OpenAIRequest | None) -> str:
    """Return a failure in the words of whoever sent the job."""
    if isinstance(request, OpenAIRequest):
        return failure.openai_job_error()
    return failure.job_error()

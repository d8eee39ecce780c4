"""Run RunPod jobs, in both of the ways that the SDK calls a handler."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from common.value_description import describe_value
from engine import Slot
from engine.request import TemplateMode
from handler.apis.calls import ApiCalls, build_calls, find_format
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.service import OpenAIService
from handler.delivery import limits
from handler.delivery.results import ResultDelivery, ResultUploader
from handler.errors import ErrorInfo, ResultTooLarge, error_info
from handler.generation.offload import check_body
from handler.input.options import NO_DEFAULTS, OptionsReader
from handler.input.request import (
    JobRequest,
    OpenAIRequest,
    TextRequest,
    is_openai_call,
    parse_job,
)
from handler.job.job_output import OutputGenerator
from handler.job.job_result import Interruption, JobResult, find_interruption
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline

logger = logging.getLogger(__name__)

SendChunk = Callable[[bytes], Awaitable[object]]


class JobHandler:
    """Runs jobs. Does not import the SDK, so the local worker and batches use it as well.

    An invalid job or a failed engine gives a result with one `error` string and no exception: the
    SDK would send an exception's traceback to the client. The handler keeps no state between jobs.
    Cancelling the task that runs a job stops its generation.
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
        calls: ApiCalls | None = None,
        results: ResultUploader | None = None,
    ) -> None:
        self._models = models if isinstance(models, ModelRegistry) else ModelRegistry(models)
        self._options = options
        self._calls = calls or build_calls(
            OpenAIService(self._models, CallDefaults(max_tokens=max_tokens, options=options)),
            self._models,
        )
        self._validation = validation
        self._chat_template = chat_template
        self._results = results or ResultUploader()
        self._outputs = OutputGenerator(self._models, self._calls, self._results.limits, interval_s)

    @property
    def is_dead(self) -> bool:
        """Whether no model can answer any more, so that the worker should be replaced."""
        return self._models.is_dead

    async def run(self, job: Mapping[str, Any], slot: Slot | None = None) -> Any:
        """Return a job's one output for the SDK (STREAM_MODE=aggregate), or `{"error": …}`.

        A streamed OpenAI call returns its server-sent events as one string, because its client
        parses nothing else.
        """
        return self.sdk_output(await self.run_encoded(job, slot, measure=limits.sdk_size_bytes))

    def sdk_output(self, result: JobResult) -> Any:
        """Return a result in the SDK's form: the output, or `{"error": …}`."""
        if result.output is None:
            return self._sdk_error(result.error)
        return orjson.loads(result.output)

    async def run_encoded(
        self,
        job: Mapping[str, Any],
        slot: Slot | None = None,
        timeout_s: float | None = None,
        send_chunk: SendChunk | None = None,
        *,
        as_list: bool = False,
        measure: Callable[[Any], int] | None = None,
    ) -> JobResult:
        """Run a job and return its output, encoded once.

        A job that asks to stream passes its chunks to `send_chunk` as they are generated and its
        whole JSON last, and returns that JSON. With `as_list` (STREAM_MODE=generator) every job
        passes its chunks to `send_chunk` and returns the list of them.

        `slot` is a reserved slot; its owner releases it if the job does not use it. `timeout_s`
        replaces the engine's own limit. `measure` returns the size in bytes of an output as its
        receiver encodes it; the default is the size of its JSON here.
        """
        request: JobRequest | None = None
        try:
            request = await check_body(job.get("input"), partial(self._parse, job, timeout_s))
            delivery = self._plan_delivery(job, request)
            streams = send_chunk is not None and request.streaming
            if send_chunk is not None and as_list:
                return JobResult(output=await self._send_list(request, delivery, slot, send_chunk))
            if send_chunk is not None and streams:
                output = await self._send_stream(request, slot, send_chunk)
            else:
                output = await self._outputs.generate(request, slot)
            body = orjson.dumps(output)
            size_bytes = len(body) if measure is None else measure({"output": output})
            delivered = await delivery.deliver(output, size_bytes)
            if delivered is output:
                return JobResult(output=body)
            pointer = orjson.dumps(delivered)
            if send_chunk is not None and streams:
                await send_chunk(pointer)
            return JobResult(output=pointer)
        except Exception as error:
            failure = error_info(error)
            return JobResult(
                error=_format_error(failure, job),
                retryable=failure.mapping.retryable,
                interruption=find_interruption(error, is_dead=self.is_dead),
                reason=failure.message,
            )

    async def stream(
        self,
        job: Mapping[str, Any],
        slot: Slot | None = None,
        *,
        include_in_result: Callable[[bool], object] = lambda is_included: None,
        on_interruption: Callable[[Interruption, str], bool] = lambda kind, reason: False,
    ) -> AsyncGenerator[Any, None]:
        """Yield a job's outputs for the SDK as they are generated (STREAM_MODE=generator).

        A text job yields its partial outputs, and the whole JSON last. A streamed OpenAI call
        yields blocks of whole events only; another OpenAI call yields its one body. A failure is
        yielded as `{"error": …}`, and the SDK then ends the job with it.

        `include_in_result` is called before each output. Its argument states whether the output is
        part of the list that becomes the job's result: outputs that go to a bucket are not, and the
        pointer to them is the last output.

        `on_interruption` is called with the reason if the engine fails before the first output. If
        it returns True, the stream ends without an output, and the caller runs the job again.
        """
        request: JobRequest | None = None
        has_output = False
        try:
            request = await check_body(job.get("input"), partial(self._parse, job))
            delivery = self._plan_delivery(job, request)
            async with aclosing(
                self._stream_chunks(request, delivery, slot, _encode_for_sdk)
            ) as chunks:
                async for output, _, is_included in chunks:
                    has_output = True
                    include_in_result(is_included)
                    yield output
        except Exception as error:
            failure = error_info(error)
            kind = find_interruption(error, is_dead=self.is_dead)
            if kind is not None and not has_output and on_interruption(kind, failure.message):
                return
            include_in_result(True)
            yield self._sdk_error(_format_error(failure, job))

    def check(self, job: Mapping[str, Any]) -> None:
        """Validate a job without running it. Raises InvalidRequest or NotFound."""
        request = self._parse(job)
        self._plan_delivery(job, request)
        if isinstance(request, OpenAIRequest):
            self._calls.check(request.route, request.body)
        else:
            self._outputs.find_pipeline(request)

    def _parse(self, job: Mapping[str, Any], timeout_s: float | None = None) -> JobRequest:
        """Read a job, which is a text request or an OpenAI call."""
        has_several = self._models.has_several
        request = parse_job(
            job,
            self._options,
            validation=self._validation,
            chat_template=self._chat_template,
            chooses_model=has_several,
        )
        model = job["input"].get("model")
        if isinstance(request, TextRequest) and model is not None:
            request = self._choose_adapter(request, model)
            if not has_several:
                request = self._add_model_warning(request, model)
        return request if timeout_s is None else request.with_timeout(timeout_s)

    def _choose_adapter(self, request: TextRequest, model: Any) -> TextRequest:
        """Return the request with the adapter that it names as its model; `lora` has precedence."""
        sampling = request.generation.sampling
        if sampling.lora is not None or not isinstance(model, str):
            return request
        name = self._models.find_name(model)
        if name is None or not self._models.is_adapter(name):
            return request
        generation = replace(request.generation, sampling=replace(sampling, lora=name))
        return replace(request, generation=generation)

    def _add_model_warning(self, request: TextRequest, model: Any) -> TextRequest:
        """Return the request with a warning if it names a model that is not served."""
        if isinstance(model, str) and self._models.find_name(model) is not None:
            return request
        name = self._models.names[0]
        warning = f"input.model was ignored: {describe_value(model)} is not served, {name} answers"
        return replace(request, warnings=(*request.warnings, warning))

    def _plan_delivery(self, job: Mapping[str, Any], request: JobRequest) -> ResultDelivery:
        return self._results.plan_delivery(job, is_openai=isinstance(request, OpenAIRequest))

    async def _stream_chunks(
        self,
        request: JobRequest,
        delivery: ResultDelivery,
        slot: Slot | None,
        encode: Callable[[Any], bytes],
    ) -> AsyncGenerator[tuple[Any, bytes, bool], None]:
        """Yield each chunk, its encoding, and whether it is part of the result that is sent."""
        async with aclosing(self._outputs.stream(request, slot, has_final=False)) as outputs:
            async for output, _ in outputs:
                body = encode(output)
                self._results.limits.check_chunk(len(body))
                yield output, body, delivery.add_chunk(output, len(body))
        if (pointer := await delivery.finish()) is not None:
            yield pointer, encode(pointer), True

    async def _send_list(
        self,
        request: JobRequest,
        delivery: ResultDelivery,
        slot: Slot | None,
        send_chunk: SendChunk,
    ) -> bytes:
        """Pass each chunk to `send_chunk`; return the list of the chunks in the job's result."""
        included: list[bytes] = []
        async with aclosing(self._stream_chunks(request, delivery, slot, orjson.dumps)) as chunks:
            async for _, body, is_included in chunks:
                if is_included:
                    included.append(body)
                await send_chunk(body)
        return b"[%b]" % b",".join(included)

    async def _send_stream(
        self, request: JobRequest, slot: Slot | None, send_chunk: SendChunk
    ) -> Any:
        """Pass the chunks of a job to `send_chunk` and return its final output.

        A refused chunk ends the stream of a text job but not the job: its output does not depend on
        the stream, and a warning in it gives the reason. An OpenAI call fails instead, because the
        stream is its answer and must not look complete.
        """
        texts: list[str] = []
        final: Any = None
        warning: str | None = None
        async with aclosing(self._outputs.stream(request, slot, has_final=True)) as outputs:
            async for chunk, output in outputs:
                final = output
                if isinstance(chunk, str):
                    texts.append(chunk)
                if warning is not None:
                    continue
                body = orjson.dumps(chunk)
                try:
                    self._results.limits.check_chunk(len(body))
                    await send_chunk(body)
                except ResultTooLarge as error:
                    if isinstance(request, OpenAIRequest):
                        raise
                    warning = f"the rest of the answer was not streamed: {error}"
        if final is None:
            return "".join(texts)
        if warning is not None:
            logger.warning("%s", warning)
            final.setdefault("warnings", []).append(warning)
        return final

    def _sdk_error(self, message: str | None) -> dict[str, Any]:
        output: dict[str, Any] = {"error": message}
        if self.is_dead:
            output["refresh_worker"] = True
        return output


def _encode_for_sdk(output: Any) -> bytes:
    return limits.encode_for_sdk({"output": output})


def _format_error(failure: ErrorInfo, job: Mapping[str, Any]) -> str:
    """Return a job's error message in the form that its sender expects."""
    job_input = job.get("input")
    if isinstance(job_input, Mapping) and is_openai_call(job_input):
        route = job_input.get("openai_route")
        wire_format = find_format(route if isinstance(route, str) else "")
        return orjson.dumps(wire_format.encode_error(failure)).decode()
    return failure.job_error()

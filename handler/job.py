"""One RunPod job to its output, in both of the ways the SDK can call a handler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from engine import EngineState
from handler import limits
from handler.errors import problem
from handler.openai.service import MODELS, OpenAIService, events
from handler.options import PLAIN, OptionsReader
from handler.pipeline import Pipeline
from handler.request import OpenAIRequest, TextRequest, parse
from handler.response import encode, encode_partial

_SIZES_NOTE = "deltas and tokens were left out of the final output, which would exceed 1 MB"


class JobHandler:
    """Runs jobs; knows nothing of the SDK, so the emulator's own worker uses it as well.

    Never raises for a bad job or a failed engine: the SDK would put a traceback before the client.
    A failure is an output whose `error` is one string. Holds nothing between jobs; cancelling the
    task that runs a job stops its generation.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: OptionsReader = PLAIN,
        *,
        max_tokens: int | None = None,
        validation: bool = True,
        interval_s: float = 0.05,
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._openai = OpenAIService(pipeline, options, max_tokens=max_tokens)
        self._validation = validation
        self._interval_s = interval_s

    @property
    def dead(self) -> bool:
        """Whether the engine is past helping, so that the worker should be replaced."""
        return self._pipeline.engine.state is EngineState.DEAD

    async def run(self, job: Mapping[str, Any]) -> Any:
        """Return a job's whole output (STREAM_MODE=aggregate), or `{"error": …}`.

        A streamed OpenAI call answers with its server-sent events as one string, since there is no
        other way for a client that asked for a stream to understand the answer.
        """
        request: TextRequest | OpenAIRequest | None = None
        try:
            request = parse(job, self._options, validation=self._validation)
            if isinstance(request, TextRequest):
                output: Any = encode(await self._pipeline.run(request))
            else:
                output = await self._run_openai(request)
            limits.check_result(_id(job), limits.wire_size({"output": output}))
        except Exception as error:
            return self._failure(error, request)
        return output

    async def _run_openai(self, request: OpenAIRequest) -> Any:
        if request.route == MODELS:
            return self._openai.models()
        codec = self._openai.codec(request.route, request.body)
        if not codec.request.streaming:
            return await self._openai.whole(codec)
        async with await self._openai.open(codec) as running:
            blocks = [block async for block in events(codec, running)]
        return b"".join(blocks).decode()

    async def stream(self, job: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield partial outputs as they come, the whole JSON last (STREAM_MODE=generator).

        A streamed OpenAI call yields text of whole events and nothing else; a call that is not
        streamed yields its one body. A failure is yielded as `{"error": …}`, and the SDK then ends
        the job with it.
        """
        request: TextRequest | OpenAIRequest | None = None
        size = 0
        try:
            request = parse(job, self._options, validation=self._validation)
            if isinstance(request, TextRequest):
                outputs = self._stream_text(request)
            else:
                outputs = self._stream_openai(request)
            async with aclosing(outputs):
                async for output in outputs:
                    # The platform's result is the list of all that was yielded.
                    chunk = limits.wire_size({"output": output})
                    limits.check_chunk(chunk)
                    size += chunk
                    limits.check_result(_id(job), size)
                    yield output
        except Exception as error:
            yield self._failure(error, request)

    async def _stream_text(self, request: TextRequest) -> AsyncGenerator[Any, None]:
        if request.streaming:
            async with await self._pipeline.open(request) as running:
                async for batch in running.batches(self._interval_s):
                    for part in limits.split(batch):
                        yield encode_partial(part)
                final = encode(await running.answer())
        else:
            final = encode(await self._pipeline.run(request))
        if limits.wire_size({"output": final}) > limits.STREAM_CHUNK_BYTES:
            choice = final["choices"][0]
            choice.pop("deltas", None)
            del choice["tokens"]
            final.setdefault("warnings", []).append(_SIZES_NOTE)
        yield final

    async def _stream_openai(self, request: OpenAIRequest) -> AsyncGenerator[Any, None]:
        if request.route == MODELS:
            yield self._openai.models()
            return
        codec = self._openai.codec(request.route, request.body)
        if not codec.request.streaming:
            yield await self._openai.whole(codec)
            return
        async with await self._openai.open(codec) as running:
            async for block in events(codec, running, self._interval_s):
                yield block.decode()

    def _failure(
        self, error: Exception, request: TextRequest | OpenAIRequest | None
    ) -> dict[str, Any]:
        failure = problem(error)
        openai = isinstance(request, OpenAIRequest)
        output: dict[str, Any] = {
            "error": failure.openai_job_error() if openai else failure.job_error()
        }
        if self.dead:
            output["refresh_worker"] = True
        return output


def _id(job: Mapping[str, Any]) -> str:
    return str(job.get("id") or "")

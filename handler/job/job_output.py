"""Generate the outputs of one job: its whole JSON, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from engine import Delta, Priority, Slot
from handler.apis.calls import ApiCalls
from handler.apis.core.api import CallContext
from handler.delivery import limits
from handler.input.request import OpenAIRequest, TextRequest
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline
from handler.response import encode_answer, encode_partial

_DELTAS_NOTE = "deltas and tokens were left out of the final output, which would exceed {:g} MB"
_TEXT_NOTE = "the text was left out of the last chunk, which would exceed {:g} MB; /status has it"


class OutputChunk(NamedTuple):
    """A chunk to stream; the last one of a job also has the job's final output."""

    chunk: Any
    final: Any = None


class OutputGenerator:
    """Runs parsed requests; each output is a JSON value as RunPod's clients receive it.

    `interval_s` is the minimum time between two chunks. `payload_limits` bounds each chunk. Holds
    no state between requests.
    """

    def __init__(
        self,
        models: ModelRegistry,
        calls: ApiCalls,
        payload_limits: limits.PayloadLimits,
        interval_s: float,
    ) -> None:
        self._models = models
        self._calls = calls
        self._limits = payload_limits
        self._interval_s = interval_s

    async def generate(self, request: TextRequest | OpenAIRequest, slot: Slot | None) -> Any:
        """Return the one output of a request.

        A streamed OpenAI call returns its events as one string: its client parses nothing else.
        Raises EngineError, or InvalidRequest if only the engine can find the error.
        """
        if isinstance(request, TextRequest):
            return encode_answer(await self.find_pipeline(request).run(request, slot))
        texts: list[str] = []
        async with aclosing(self._stream_openai(request, slot)) as outputs:
            async for chunk, final in outputs:
                if final is not None:
                    return final
                texts.append(chunk)
        return "".join(texts)

    def stream(
        self, request: TextRequest | OpenAIRequest, slot: Slot | None, *, has_final: bool
    ) -> AsyncGenerator[OutputChunk, None]:
        """Yield the chunks of a request as they are generated.

        A text request yields partial outputs and its final output last. A streamed OpenAI call
        yields blocks of events only; another OpenAI call yields its body.

        `has_final` states that the job's result is the final output, not the list of chunks. Then
        an answer that may be regenerated is streamed after it is complete, and a last chunk that is
        too large goes without its text, which the earlier chunks contain.
        """
        if isinstance(request, TextRequest):
            return self._stream_text(request, slot, has_final=has_final)
        return self._stream_openai(request, slot)

    def find_pipeline(self, request: TextRequest) -> Pipeline:
        """Return the pipeline of the model that a job names. Raises ModelNotFound."""
        return self._models.find(request.model, "input.model")

    async def _stream_text(
        self, request: TextRequest, slot: Slot | None, *, has_final: bool
    ) -> AsyncGenerator[OutputChunk, None]:
        pipeline, max_chars = self.find_pipeline(request), self._limits.partial_chars
        if not request.streaming:
            final = encode_answer(await pipeline.run(request, slot))
        elif has_final and request.options.regenerate:
            answer = await pipeline.run(request, slot)
            for part in limits.split_deltas([Delta(text) for text in answer.deltas], max_chars):
                yield OutputChunk(encode_partial(part))
            final = encode_answer(answer)
        else:
            async with await pipeline.open(request, slot) as generation:
                async for batch in generation.batches(self._interval_s):
                    for part in limits.split_deltas(batch, max_chars):
                        yield OutputChunk(encode_partial(part))
                final = encode_answer(await generation.build_answer())
        yield OutputChunk(self._fit_chunk(final, has_final=has_final), final)

    def _fit_chunk(self, final: dict[str, Any], *, has_final: bool) -> dict[str, Any]:
        """Return a final output as a chunk, without the fields that exceed a chunk's limit."""
        limit_mb = self._limits.chunk_bytes / 1e6
        if self._fits(final):
            return final
        chunk = _without(final, ("deltas", "tokens"), _DELTAS_NOTE.format(limit_mb))
        if not has_final or self._fits(chunk):
            return chunk
        return _without(
            final, ("text", "reasoning", "deltas", "tokens"), _TEXT_NOTE.format(limit_mb)
        )

    def _fits(self, output: Any) -> bool:
        return limits.sdk_size_bytes({"output": output}) <= self._limits.chunk_bytes

    async def _stream_openai(
        self, request: OpenAIRequest, slot: Slot | None
    ) -> AsyncGenerator[OutputChunk, None]:
        context = CallContext(
            slot=slot,
            priority=Priority.JOB,
            timeout_s=request.timeout_s,
            job_id=request.job_id,
            warnings=request.warnings,
            interval_s=self._interval_s,
            part_chars=self._limits.partial_chars,
        )
        async with aclosing(self._calls.run(request.route, request.body, context)) as outputs:
            async for output in outputs:
                if isinstance(output, bytes):
                    yield OutputChunk(output.decode())
                else:
                    yield OutputChunk(output, output)


def _without(output: dict[str, Any], names: tuple[str, ...], note: str) -> dict[str, Any]:
    """Return an output without the named fields of its choice, with a warning that says so."""
    [choice] = output["choices"]
    choice = {name: value for name, value in choice.items() if name not in names}
    return {**output, "choices": [choice], "warnings": [*output.get("warnings", ()), note]}

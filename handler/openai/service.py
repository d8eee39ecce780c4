"""OpenAI's routes, without HTTP: what the emulator and a job with `openai_route` share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from handler.errors import NotFound, Problem, problem
from handler.limits import split
from handler.openai.chat import CHAT
from handler.openai.codec import Codec, Shape
from handler.openai.completions import COMPLETIONS
from handler.options import PLAIN, OptionsReader
from handler.pipeline import Pipeline, Running
from handler.sampling import shown

SHAPES: Mapping[str, Shape] = {"/v1/completions": COMPLETIONS, "/v1/chat/completions": CHAT}
MODELS = "/v1/models"
DONE = b"data: [DONE]\n\n"


class OpenAIService:
    """Answers OpenAI calls from the pipeline; holds nothing between them.

    `max_tokens` is what DEFAULT_MAX_TOKENS sets where a call says nothing, None for no limit but
    the context.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: OptionsReader = PLAIN,
        *,
        max_tokens: int | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._max_tokens = max_tokens
        self._created = int(time.time())

    def codec(self, route: str, body: Mapping[str, Any]) -> Codec:
        """Return what a call to a route asks for. Raises InvalidRequest or NotFound."""
        shape = SHAPES.get(route)
        if shape is None:
            known = ", ".join([*SHAPES, MODELS])
            raise NotFound(f"there is no route {shown(route)}, there are: {known}", "openai_route")
        return Codec(shape, body, self._pipeline.model_name, self._max_tokens, self._options)

    def models(self) -> dict[str, Any]:
        """Return the list of models: the one that is served."""
        model = {
            "id": self._pipeline.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "worker-rkllm",
        }
        return {"object": "list", "data": [model]}

    async def whole(self, codec: Codec) -> dict[str, Any]:
        """Return the body of a call that is not streamed. Raises EngineError."""
        return codec.whole(await self._pipeline.run(codec.request))

    async def open(self, codec: Codec) -> Running:
        """Start a streamed call and wait for its first text. Raises EngineError."""
        return await self._pipeline.open(codec.request)


async def events(
    codec: Codec, running: Running, interval_s: float = 0.0
) -> AsyncGenerator[bytes, None]:
    """Yield a streamed answer as blocks of whole server-sent events, `[DONE]` last.

    Text that came while the reader was busy goes out as one event. An error after the first text is
    an event of its own and then the end (R30).
    """
    opening = codec.opening(running.created)
    try:
        async for batch in running.batches(interval_s):
            for part in split(batch):
                yield opening + codec.delta(part)
                opening = b""
        yield opening + codec.closing(await running.answer()) + DONE
    except Exception as error:
        # Whatever it was: a stream that just stops would look like a whole answer to some clients.
        yield opening + error_event(problem(error)) + DONE


def error_event(failure: Problem) -> bytes:
    """Return a failure as an event."""
    return b"data: " + orjson.dumps(failure.openai_error()) + b"\n\n"

"""One OpenAI call: how to run it, and how to tell what comes of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine import Delta, Finish, GenerationRequest, Priority
from engine.request import Prompt
from handler.errors import InvalidRequest, NotFound
from handler.options import PLAIN, OptionsReader
from handler.pipeline import Answer
from handler.request import TextRequest, read_flag
from handler.response import encode_verdict
from handler.sampling import Defaults, read_sampling, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a family of routes differs from the others: what it reads and what its bodies look like.

    `text` and `chunk` make the part of a choice that holds text, whole and streamed;
    `opening_choice` and `last_choice` are a stream's first and last, None for no first one.
    """

    id_prefix: str
    object: str
    chunk_object: str
    prompt: Callable[[Mapping[str, Any]], Prompt]
    text: Callable[[str], dict[str, Any]]
    chunk: Callable[[bytes], bytes]
    opening_choice: dict[str, Any] | None
    last_choice: dict[str, Any]


class Codec:
    """Holds one call from its body to its answer, whole or as server-sent events.

    What all chunks of a stream share is rendered once, so an event costs the encoding of its text.
    Each method that returns events returns whole ones, so that a client which decodes every network
    read alone still works (R29).

    Raises:
        InvalidRequest: naming the parameter that is wrong.
        NotFound: the model asked for is not the one that is served.
    """

    def __init__(
        self,
        shape: Shape,
        body: Mapping[str, Any],
        served: str,
        max_tokens: int | None,
        options: OptionsReader = PLAIN,
    ) -> None:
        self._shape = shape
        self._model = _model(body, served)
        self.request = _request(shape, body, max_tokens, options)
        self._include_usage = _include_usage(body, streaming=self.request.streaming)
        self._head = self._tail = b""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        shape, finish = self._shape, answer.finish
        choice = {"index": 0, **shape.text(answer.text), "logprobs": None, **_ending(finish)}
        body: dict[str, Any] = {
            "id": answer.id,
            "object": shape.object,
            "created": answer.created,
            "model": self._model,
            "choices": [choice],
            "usage": _usage(finish),
        }
        if answer.warnings:
            body["warnings"] = list(answer.warnings)
        return body | encode_verdict(answer)

    def opening(self, created: int) -> bytes:
        """Return what comes before the first text, perhaps nothing; first of the event methods."""
        constant = {
            "id": self.request.generation.request_id,
            "object": self._shape.chunk_object,
            "created": created,
            "model": self._model,
        }
        self._constant = orjson.dumps(constant)[:-1]
        self._head = b"data: " + self._constant + b',"choices":[{"index":0,'
        # With include_usage every chunk but the last carries the key, as null (OpenAI).
        usage = b',"usage":null' if self._include_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        first = self._shape.opening_choice
        return b"" if first is None else self._head + orjson.dumps(first)[1:-1] + self._tail

    def delta(self, batch: list[Delta]) -> bytes:
        """Return one event with the new text of a batch."""
        text = batch[0].text if len(batch) == 1 else "".join([delta.text for delta in batch])
        return self._head + self._shape.chunk(orjson.dumps(text)) + self._tail

    def closing(self, answer: Answer) -> bytes:
        """Return the chunk with the finish reason and no text (R21), and the usage (R22).

        Without stream_options the usage is on that chunk (S0); with include_usage it has a chunk of
        its own; with include_usage false there is none.
        """
        last = {**self._shape.last_choice, "logprobs": None, **_ending(answer.finish)}
        chunk: dict[str, Any] = {"choices": [{"index": 0, **last}]}
        if answer.warnings:
            chunk["warnings"] = list(answer.warnings)
        chunk |= encode_verdict(answer)
        totals = _usage(answer.finish)
        if self._include_usage is None:
            chunk["usage"] = totals
            return self._event(chunk)
        if not self._include_usage:
            return self._event(chunk)
        return self._event(chunk | {"usage": None}) + self._event({"choices": [], "usage": totals})

    def _event(self, rest: dict[str, Any]) -> bytes:
        return b"data: " + self._constant + b"," + orjson.dumps(rest)[1:] + b"\n\n"


def _model(body: Mapping[str, Any], served: str) -> str:
    model = body.get("model")
    if model is None:
        return served
    if not isinstance(model, str):
        raise InvalidRequest(f"model must be a string, got {shown(model)}", "model")
    if model != served:
        raise NotFound(f"the model {shown(model)} does not exist, there is: {served}", "model")
    return model


def _request(
    shape: Shape, body: Mapping[str, Any], max_tokens: int | None, options: OptionsReader
) -> TextRequest:
    prompt = shape.prompt(body)
    sampling, streaming, warnings = read_sampling(body, Defaults(max_tokens=max_tokens))
    generation = GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        request_id=f"{shape.id_prefix}-{uuid.uuid4().hex}",
        priority=Priority.INTERACTIVE,
    )
    wanted, missing = options.read(body.get("validation"))
    return TextRequest(
        generation=generation,
        streaming=streaming,
        # Not OpenAI's: its clients are told only if they ask.
        validation=read_flag(body, "enable_validation", default=False),
        options=wanted,
        warnings=(*warnings, *missing),
    )


def _include_usage(body: Mapping[str, Any], *, streaming: bool) -> bool | None:
    options = body.get("stream_options")
    if options is None:
        return None
    if not streaming:
        raise InvalidRequest("stream_options must come with stream: true", "stream_options")
    allowed = "stream_options must be an object with include_usage: true or false"
    if not isinstance(options, Mapping) or set(options) - {"include_usage"}:
        raise InvalidRequest(f"{allowed}, got {shown(options)}", "stream_options")
    wanted = options.get("include_usage", False)
    if not isinstance(wanted, bool):
        raise InvalidRequest(f"{allowed}, got {shown(wanted)}", "stream_options")
    return wanted


def _ending(finish: Finish) -> dict[str, Any]:
    ending: dict[str, Any] = {"finish_reason": finish.reason.value}
    if finish.stop_reason is not None:
        ending["stop_reason"] = finish.stop_reason
    return ending


def _usage(finish: Finish) -> dict[str, int]:
    counted = finish.usage
    return {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": counted.completion_tokens,
        "total_tokens": counted.total_tokens,
    }

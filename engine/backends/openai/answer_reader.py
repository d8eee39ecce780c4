"""Reads the stream of a server's answer, and checks that it is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from engine.backends.base import RunResult
from engine.backends.openai.event_stream import Event
from engine.backends.openai.output_writer import Emit, OutputWriter, Token
from engine.backends.openai.server_errors import read_error
from engine.errors import EngineCrashed
from engine.output import FinishReason, TokenLogprob

_DONE = "[DONE]"
# Of OpenAI, vLLM, SGLang, TGI, Anthropic's compatible API and Mistral.
_REASONS = {
    **dict.fromkeys(
        ("stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"),
        FinishReason.STOP,
    ),
    **dict.fromkeys(("length", "max_tokens", "model_length"), FinishReason.LENGTH),
    "content_filter": FinishReason.CONTENT_FILTER,
}
_UNKNOWN_USAGE = (
    "the server tells the usage of whole answers alone, so prompt_tokens is 0 and "
    "completion_tokens the number of pieces of its stream"
)
_MAX_EXCERPT_CHARS = 100
_MIN_LOGPROB = -9999.0


class AnswerReader:
    """Reads one stream event by event, and passes the answer on in pieces.

    An answer is complete with its finish reason: a stream that ends without one has failed, and so
    has one with an error, with something else than JSON, or with text after the finish reason.
    Owned by the event loop of the backend.
    """

    def __init__(self, emit: Emit) -> None:
        self._writer = OutputWriter(emit)
        self._reason: FinishReason | None = None
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._cached_tokens = 0
        self._reasoning_tokens: int | None = None
        # A dict, because a warning may be in several events.
        self._warnings: dict[str, None] = {}
        self.is_done = False

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has stopped the answer."""
        return self._writer.is_stopped

    def read(self, event: Event) -> None:
        """Read one event. Raises EngineCrashed for one that no whole answer has.

        When the engine has stopped the answer, only the usage is read.
        """
        if event.data.strip() == _DONE:
            self.is_done = True
        if self.is_done:
            return
        if self.is_stopped:
            with suppress(EngineCrashed):
                self._read_usage(_parse(event.data))
            return
        chunk = _parse(event.data)
        if event.name == "error" or _is_error(chunk):
            raise _failed(chunk)
        try:
            self._read_chunk(chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _broken(f"an event of an unknown form: {_excerpt(event.data)}") from None

    def _read_chunk(self, chunk: Mapping[str, Any]) -> None:
        self._read_usage(chunk)
        self._read_warnings(chunk)
        for choice in _list(chunk, "choices"):
            if choice.get("error"):
                # Of OpenRouter, in front of a server that has failed.
                raise _failed(choice)
            if not choice.get("index"):
                self._read_choice(choice)

    def close(self) -> None:
        """Check that the answer has ended. Raises EngineCrashed."""
        if self._reason is None and not self.is_stopped:
            raise EngineCrashed("the server ended its answer without a finish reason")

    def result(self) -> RunResult:
        """Return the result of the answer so far."""
        warnings = [*self._warnings]
        if self._prompt_tokens is None:
            warnings.append(_UNKNOWN_USAGE)
        if self._writer.has_lost_reasoning:
            warnings.append("reasoning that the server sent after text or calls was left out")
        if self._writer.lost_logprobs:
            warnings.append(
                f"logprobs of {self._writer.lost_logprobs} tokens were left out, because the "
                "server's tokens do not make up its text"
            )
        return RunResult(
            reason=self._reason or FinishReason.STOP,
            prompt_tokens=self._prompt_tokens or 0,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._reasoning_tokens,
            warnings=tuple(warnings),
        )

    def _read_choice(self, choice: Mapping[str, Any]) -> None:
        # Some servers stream the end of a call, or a whole answer, as a message.
        delta = choice.get("delta" if "delta" in choice else "message") or {}
        if not isinstance(delta, dict):
            raise _broken(f"a delta that is {_excerpt(delta)}")
        tokens = _read_tokens(choice.get("logprobs"))
        for kind, text in _read_texts(choice, delta):
            if text and self._reason is not None:
                raise _broken("text after its finish reason")
            if kind == "reasoning":
                if text:
                    self._writer.write_reasoning(text)
            elif text or tokens:
                self._writer.write_text(text, tokens)
        for call in _read_calls(delta):
            if self._reason is not None:
                raise _broken("a call after its finish reason")
            self._read_call(call)
        if (reason := choice.get("finish_reason")) and self._reason is None:
            self._finish(reason)

    def _read_call(self, call: Mapping[str, Any]) -> None:
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        index = call.get("index")
        self._writer.write_call(
            index if isinstance(index, int) else 0,
            str(call.get("id") or ""),
            str(function.get("name") or ""),
            arguments,
        )

    def _finish(self, reason: Any) -> None:
        self._writer.close()
        known = _REASONS.get(reason.casefold()) if isinstance(reason, str) else None
        if known is None:
            raise EngineCrashed(f"the server ended its answer with the reason {_excerpt(reason)}")
        self._reason = known

    def _read_warnings(self, chunk: Mapping[str, Any]) -> None:
        """Read the warnings of a worker-rkllm, such as of parameters that its model ignores."""
        warnings = chunk.get("warnings")
        if isinstance(warnings, list):
            self._warnings |= {each: None for each in warnings if isinstance(each, str)}

    def _read_usage(self, chunk: Mapping[str, Any]) -> None:
        """Read token counts: of the whole answer, or in each chunk those so far."""
        usage, timings = chunk.get("usage"), chunk.get("timings")
        if isinstance(usage, dict):
            self._prompt_tokens = _count(usage, "prompt_tokens")
            self._completion_tokens = _count(usage, "completion_tokens")
            details = usage.get("prompt_tokens_details")
            self._cached_tokens = _count(details, "cached_tokens") or 0
            details = usage.get("completion_tokens_details")
            self._reasoning_tokens = _count(details, "reasoning_tokens")
        elif isinstance(timings, dict) and "prompt_n" in timings:
            # llama-server: `prompt_n` were computed, and `cache_n` were in its cache.
            self._cached_tokens = _count(timings, "cache_n") or 0
            self._prompt_tokens = (_count(timings, "prompt_n") or 0) + self._cached_tokens
            self._completion_tokens = _count(timings, "predicted_n")


def _is_error(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk is an error; older versions of vLLM send it as `object`."""
    return bool(chunk.get("error")) or chunk.get("object") == "error"


def _failed(failure: Mapping[str, Any]) -> EngineCrashed:
    message, _ = read_error(json.dumps(failure).encode())
    return EngineCrashed(f"the server failed in the middle of its answer: {message}")


def _parse(data: str) -> Mapping[str, Any]:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        chunk = _parse_surrogates(data)
    if not isinstance(chunk, dict):
        raise _broken(f"the event {_excerpt(data)}")
    return chunk


def _parse_surrogates(data: str) -> Any:
    """Parse JSON that may have one half of a surrogate pair, which orjson refuses."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _broken(f"an event without JSON: {_excerpt(data)}") from None


def _read_texts(choice: Mapping[str, Any], delta: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the texts of a chunk, each with its kind, in the order in which models write them."""
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    texts = [("reasoning", reasoning)] if isinstance(reasoning, str) else []
    content = choice.get("text") if "text" in choice else delta.get("content")
    if isinstance(content, list):
        return [*texts, *_read_parts(content)]
    if not isinstance(content, str | None):
        raise _broken(f"content that is {_excerpt(content)}")
    refusal = delta.get("refusal")
    return [*texts, ("text", (content or "") + (refusal if isinstance(refusal, str) else ""))]


def _read_parts(parts: Sequence[Any]) -> Sequence[tuple[str, str]]:
    """Return the texts of a content in parts, as Mistral's reasoning models have it."""
    texts: list[tuple[str, str]] = []
    for part in parts:
        if not isinstance(part, dict):
            raise _broken(f"a part of its content that is {_excerpt(part)}")
        if part.get("type") == "thinking":
            thinking = part.get("thinking")
            inner = thinking if isinstance(thinking, list) else []
            texts.extend(("reasoning", str(each.get("text") or "")) for each in inner)
        else:
            texts.append(("text", str(part.get("text") or "")))
    return texts


def _read_calls(delta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the parts of calls; `function_call` is the one call of OpenAI's older API."""
    calls = _list(delta, "tool_calls")
    function = delta.get("function_call")
    return [*calls, {"function": function}] if function else calls


def _read_tokens(logprobs: Any) -> Sequence[Token]:
    """Return the tokens of a chunk with their log-probabilities, in the form of either API."""
    if not isinstance(logprobs, dict):
        return ()
    if isinstance(content := logprobs.get("content"), list):
        return [_read_chat_token(entry) for entry in content]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        return ()
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return [
        (str(token).encode(), TokenLogprob(str(token), _logprob(value or 0.0), _top(top)))
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _read_chat_token(entry: Mapping[str, Any]) -> Token:
    token, data = str(entry["token"]), entry.get("bytes")
    top = tuple(
        (str(each["token"]), _logprob(each["logprob"])) for each in _list(entry, "top_logprobs")
    )
    raw = bytes(data) if isinstance(data, list) else token.encode("utf-8", "replace")
    return raw, TokenLogprob(token, _logprob(entry["logprob"]), top)


def _logprob(value: Any) -> float:
    """Return a log-probability; JSON has no infinity, and vLLM writes this number for it."""
    return max(float(value), _MIN_LOGPROB)


def _top(alternatives: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(alternatives, dict):
        return ()
    return tuple((str(token), _logprob(value)) for token, value in alternatives.items())


def _list(container: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects. Raises EngineCrashed if it is something else; null is none."""
    values = container.get(name)
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise _broken(f"{name} that are {_excerpt(values)}")
    return values


def _count(counts: Any, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def _broken(what: str) -> EngineCrashed:
    return EngineCrashed(f"the server's answer has {what}")


def _excerpt(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text[:_MAX_EXCERPT_CHARS])

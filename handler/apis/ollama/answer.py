"""Encode answers as Ollama does: whole, or as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

from common.json_object import JsonObject
from engine import FinishReason
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from engine.reply.reply import ToolCall
from handler.apis.core.reply_stream import stream_reply
from handler.apis.ollama.wire_format import encode_line, error_line
from handler.delivery.limits import PARTIAL_CHARS
from handler.errors import error_info
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer

_MS_TO_NS = 1_000_000


class AnswerEncoder:
    """Encodes one answer; `is_chat` chooses `/api/chat`, which has messages.

    Owned by the task that answers. `model` is the name that the client sent.
    """

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        # The call whose arguments are arriving: Ollama sends a call in one piece.
        self._call: CallStart | None = None
        self._arguments = ""
        self._sent_calls = 0

    def encode_answer(self, answer: CompletedAnswer) -> JsonObject:
        """Return a whole answer."""
        reply = answer.reply
        return self._encode_end(answer, answer.text, reply.reasoning, reply.calls)

    def encode_parts(self, parts: Sequence[Part]) -> bytes:
        """Return the lines for new parts, possibly none."""
        lines = []
        for part in parts:
            if not isinstance(part, CallArguments):
                lines += self._end_call()
            match part:
                case ReasoningPart(text) if text:
                    lines.append(self._encode_line("", text))
                case TextPart(text) if text:
                    lines.append(self._encode_line(text))
                case CallStart():
                    self._call = part
                case CallArguments(text):
                    self._arguments += text
        return b"".join(map(encode_line, lines))

    def encode_end(self, answer: CompletedAnswer) -> bytes:
        """Return the last lines of a stream."""
        return b"".join(map(encode_line, [*self._end_call(), self._encode_end(answer)]))

    def encode_no_text(self, reason: str) -> JsonObject:
        """Return the answer to a request that only loads or unloads a model."""
        return {**self._encode_line(""), "done": True, "done_reason": reason}

    def _end_call(self) -> list[JsonObject]:
        """Return the line for the call that has arrived, if there is one."""
        if (start := self._call) is None:
            return []
        call = ToolCall(start.id, start.name, self._arguments)
        self._call, self._arguments = None, ""
        self._sent_calls += 1
        return [self._encode_line("", "", [call], self._sent_calls - 1)]

    def _encode_line(
        self, text: str, reasoning: str = "", calls: Sequence[ToolCall] = (), first_index: int = 0
    ) -> JsonObject:
        line: dict[str, Any] = {
            "model": self._model,
            "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        thinking = {"thinking": reasoning} if reasoning else {}
        if not self._is_chat:
            return {**line, "response": text, **thinking, "done": False}
        encoded: list[JsonObject] = []
        for call in calls:
            if (arguments := call.read_arguments()) is None:
                text += call.to_json()
                continue
            function = {
                "index": first_index + len(encoded),
                "name": call.name,
                "arguments": arguments,
            }
            encoded.append({"id": call.id, "function": function})
        message: dict[str, Any] = {"role": "assistant", "content": text, **thinking}
        if encoded:
            message["tool_calls"] = encoded
        return {**line, "message": message, "done": False}

    def _encode_end(
        self,
        answer: CompletedAnswer,
        text: str = "",
        reasoning: str = "",
        calls: Sequence[ToolCall] = (),
    ) -> JsonObject:
        finish = answer.finish
        timings, usage = finish.timings, finish.usage
        body = {
            **self._encode_line(text, reasoning, calls),
            "done": True,
            "done_reason": "length" if finish.reason is FinishReason.LENGTH else "stop",
            "total_duration": _to_ns(timings.total_ms),
            "load_duration": _to_ns(timings.load_ms + timings.reload_ms),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _to_ns(timings.prefill_ms),
            "eval_count": usage.completion_tokens,
            "eval_duration": _to_ns(timings.generate_ms),
        }
        if answer.warnings:
            body["warnings"] = list(answer.warnings)
        return body


async def stream_lines(
    generation: ActiveGeneration,
    encoder: AnswerEncoder,
    interval_s: float = 0.0,
    part_chars: int = PARTIAL_CHARS,
) -> AsyncGenerator[bytes, None]:
    """Yield a streamed answer as blocks of complete lines.

    An error after the first text is sent as a line and ends the stream.
    """
    try:
        async for new in stream_reply(generation, interval_s, part_chars):
            if isinstance(new, CompletedAnswer):
                lines = encoder.encode_end(new)
            else:
                lines = encoder.encode_parts(new)
            if lines:
                yield lines
    except Exception as error:
        # Any error: a stream that just stops looks like a complete answer to some clients.
        yield error_line(error_info(error))


def _to_ns(milliseconds: float) -> int:
    return round(milliseconds * _MS_TO_NS)

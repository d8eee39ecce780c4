"""Encode a call's answers as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from common.json_object import JsonObject
from engine import Delta, TokenLogprob
from engine.reply.parser import ReplyParser
from engine.reply.parts import Part, TextPart
from engine.reply.reply_format import ReplyFormat
from handler.apis.core.parameters import Parameters
from handler.apis.openai.dialect import Dialect
from handler.apis.openai.echo import Echo
from handler.apis.openai.encoding.choice_encoder import encode_finish
from handler.apis.openai.encoding.message import encode_message_delta
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.logprobs import logprobs_within
from handler.apis.openai.usage import total_usage
from handler.delivery.limits import max_logprob_bytes, split_token_entries
from handler.generation.completed_answer import CompletedAnswer
from handler.response import encode_verdict


class ChunkEncoder:
    """Encodes the events of one call, for all its choices.

    The parts that all chunks of a choice share are encoded once, so an event costs only the
    encoding of its text. Each method returns complete events, because some clients decode each
    network read separately. `echoes` has one item per prompt; `include_usage` is the result of
    `read_include_usage`.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        dialect: Dialect,
        parameters: Parameters,
        reply_format: ReplyFormat | None,
        echoes: Sequence[Echo],
        *,
        include_usage: bool | None,
        starts_in_reasoning: bool,
    ) -> None:
        self._spec = spec
        self._parameters = parameters
        self._reply_format = reply_format
        self._starts_in_reasoning = starts_in_reasoning
        self._echoes = echoes
        self._include_usage = include_usage
        self._role_in_every_delta = dialect.role_in_every_delta
        self._encode_chunk = (
            spec.encode_chunk_with_role if self._role_in_every_delta else spec.encode_chunk
        )
        # With include_usage, every chunk but the last has `usage: null` (OpenAI).
        usage = b',"usage":null' if include_usage else b""
        self._tail = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._tail_without_logprobs = b',"logprobs":null' + self._tail
        self._envelope = b""
        self._choices: dict[int, _ChoiceState] = {}
        # By index, because choices finish in any order.
        self._answers: dict[int, CompletedAnswer] = {}
        self._sent_warnings: set[str] = set()

    def encode_opening(self, envelope: JsonObject, index: int) -> bytes:
        """Return the events before a choice's first text, possibly none. Call it first.

        All chunks of a call have the same `envelope`.
        """
        self._envelope = self._envelope or orjson.dumps(envelope)[:-1]
        head = b"data: " + self._envelope + b',"choices":[{"index":%d,' % index
        parser = None
        if self._reply_format is not None:
            parser = ReplyParser(self._reply_format, starts_in_reasoning=self._starts_in_reasoning)
        self._choices[index] = _ChoiceState(head, parser)
        events = b""
        if (opening := self._spec.opening_choice) is not None:
            events = head + orjson.dumps(opening)[1:-1] + self._tail_without_logprobs
        offset = 0
        for part in self._echo(index).split():
            offset += len(part.text)
            logprobs: JsonObject | None = None
            if (alternatives := self._parameters.logprobs) is not None and part.tokens:
                logprobs = self._spec.encode_logprobs((), alternatives, offset, part.tokens)
            events += head + self._encode_chunk(orjson.dumps(part.text))
            events += b',"logprobs":' + orjson.dumps(logprobs) + self._tail
        return events

    def encode_delta(self, batch: list[Delta], index: int) -> bytes:
        """Return the events with the new text of a batch: usually one, possibly none."""
        text = batch[0].text if len(batch) == 1 else "".join([delta.text for delta in batch])
        choice = self._choices[index]
        if (parser := choice.parser) is not None and not parser.is_plain:
            choice.add(batch, len(text))
            parts = parser.push(text)
            return self._encode_parts(index, parts, parser.decided_position)
        if self._parameters.logprobs is None:
            return (
                choice.head + self._encode_chunk(orjson.dumps(text)) + self._tail_without_logprobs
            )
        choice.add(batch, len(text))
        tokens = choice.take_tokens()
        return self._encode_text(index, text, tokens) if text or tokens else b""

    def encode_closing(self, answer: CompletedAnswer, index: int) -> bytes:
        """Return a choice's finish reason, without text; after the last choice, the usage.

        Without stream_options the usage is on the last such chunk. With include_usage it has a
        chunk of its own. With include_usage false it is not sent.
        """
        self._answers[index] = answer
        choice = self._choices[index]
        events = b""
        if choice.parser is not None:
            events = self._encode_parts(index, choice.parser.close(), len(answer.output))
        reply = answer.reply
        is_text = reply.is_all_text or reply.has_text_at(len(answer.output))
        if (tokens := choice.take_last_tokens(answer)) and is_text:
            events += self._encode_text(index, "", tokens)
        finish = encode_finish(answer.finish, has_calls=bool(answer.reply.calls))
        last_choice = {"index": index, **self._spec.last_choice, "logprobs": None, **finish}
        chunk: dict[str, Any] = {"choices": [last_choice]}
        warnings = [each for each in answer.warnings if each not in self._sent_warnings]
        if warnings:
            self._sent_warnings.update(warnings)
            chunk["warnings"] = warnings
        chunk |= encode_verdict(answer)
        if self._include_usage:
            chunk["usage"] = None
        prompt_count = len(self._echoes)
        choice_count = prompt_count * self._parameters.n
        if len(self._answers) < choice_count or self._include_usage is False:
            return events + self._encode_event(chunk)
        usage = total_usage([self._answers[each] for each in range(choice_count)], prompt_count)
        if self._include_usage is None:
            return events + self._encode_event(chunk | {"usage": usage})
        events += self._encode_event(chunk)
        return events + self._encode_event({"choices": [], "usage": usage})

    def _encode_text(self, index: int, text: str, tokens: list[TokenLogprob]) -> bytes:
        """Return an event with a text and its tokens, and more events if they exceed one."""
        head, events = self._choices[index].head, b""
        for part in split_token_entries(tokens, max_logprob_bytes):
            events += head + self._encode_chunk(orjson.dumps(text))
            events += b',"logprobs":' + orjson.dumps(self._encode_logprobs(part, index))
            events += self._tail
            text = ""
        return events

    def _encode_parts(self, index: int, parts: Sequence[Part], decided: int) -> bytes:
        """Return the events of parts of a message; texts have their tokens.

        The other tokens before the position `decided` are those of reasoning, calls and marks.
        """
        choice, events = self._choices[index], b""
        for part in parts:
            if isinstance(part, TextPart) and self._parameters.logprobs is not None:
                tokens = choice.take_tokens_within(part.start, part.start + len(part.text))
                events += self._encode_text(index, part.text, tokens)
                continue
            delta = encode_message_delta(part)
            if self._role_in_every_delta:
                delta = {"role": "assistant", **delta}
            body = orjson.dumps({"delta": delta, "logprobs": None})
            events += choice.head + body[1:-1] + self._tail
        choice.drop_tokens(decided)
        return events

    def _encode_event(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + self._envelope + b"," + orjson.dumps(fields)[1:] + b"\n\n"

    def _encode_logprobs(self, tokens: list[TokenLogprob], index: int) -> JsonObject | None:
        if not tokens or self._parameters.logprobs is None:
            return None
        offset = len(self._echo(index).text)
        return self._spec.encode_logprobs(tokens, self._parameters.logprobs, offset, ())

    def _echo(self, index: int) -> Echo:
        return self._echoes[index // self._parameters.n]


@dataclass(slots=True)
class _ChoiceState:
    """The state of one streamed choice. A token is sent with its text, never before it."""

    # The start of each of its chunks.
    head: bytes
    # None if all of the output is text.
    parser: ReplyParser | None
    _sent_chars: int = 0
    _pending_tokens: list[TokenLogprob] = field(default_factory=list)

    def add(self, batch: Sequence[Delta], chars: int) -> None:
        """Record a batch of `chars` characters."""
        self._sent_chars += chars
        self._pending_tokens += [delta.logprob for delta in batch if delta.logprob is not None]

    def take_tokens(self) -> list[TokenLogprob]:
        """Return the tokens to send with the last batch, which start within the text sent."""
        tokens = logprobs_within(self._pending_tokens, self._sent_chars)
        del self._pending_tokens[: len(tokens)]
        return tokens

    def take_tokens_within(self, start: int, end: int) -> list[TokenLogprob]:
        """Return the tokens that start between two positions in the output, and drop earlier ones.

        A text is longer than the tokens of its batch if it was held back.
        """
        self.drop_tokens(start)
        tokens = logprobs_within(self._pending_tokens, end)
        del self._pending_tokens[: len(tokens)]
        return tokens

    def drop_tokens(self, position: int) -> None:
        """Drop the tokens that start before a position in the output."""
        del self._pending_tokens[: len(logprobs_within(self._pending_tokens, position))]

    def take_last_tokens(self, answer: CompletedAnswer) -> list[TokenLogprob]:
        """Return the tokens that were not sent, unless they are those of a stop string."""
        tokens, self._pending_tokens = self._pending_tokens, []
        return [] if isinstance(answer.finish.stop_reason, str) else tokens

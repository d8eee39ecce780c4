"""A call's answers as server-sent events (R19-R22, R36)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine import Delta, TokenLogprob
from handler.completed_answer import Answer
from handler.limits import logprob_size, split_told
from handler.openai.choice_encoder import encode_finish
from handler.openai.dialect import Dialect
from handler.openai.echo import Echo
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.logprobs import logprobs_within
from handler.openai.parameters import Parameters
from handler.openai.reply import ReplyParser
from handler.openai.response_mode import ResponseMode
from handler.openai.usage import total_usage
from handler.response import encode_verdict


class ChunkEncoder:
    """Writes the events of one call, for all its choices.

    What all chunks of a choice share is rendered once, so an event costs the encoding of its text.
    Each method returns whole events, so that a client which decodes every network read alone still
    works (R29). There is one of the `echoes` for each prompt; `include_usage` is as
    `read_include_usage` has it.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        dialect: Dialect,
        parameters: Parameters,
        response_mode: ResponseMode,
        echoes: Sequence[Echo],
        *,
        include_usage: bool | None,
    ) -> None:
        self._spec = spec
        self._parameters = parameters
        self._manner = response_mode
        self._echoes = echoes
        self._include_usage = include_usage
        self._roles = dialect.role_in_every_delta
        self._chunk = spec.encode_chunk_with_role if self._roles else spec.encode_chunk
        # With include_usage every chunk but the last carries the key, as null (OpenAI).
        usage = b',"usage":null' if include_usage else b""
        self._tail = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._plain_tail = b',"logprobs":null' + self._tail
        self._constant = b""
        self._told: dict[int, _ChoiceState] = {}
        # By index: they end in any order.
        self._answers: dict[int, Answer] = {}
        self._warned: set[str] = set()

    def encode_opening(self, envelope: dict[str, Any], index: int) -> bytes:
        """Return what comes before a choice's first text, perhaps nothing; first of its events.

        All of a call's chunks have the same `envelope`.
        """
        self._constant = self._constant or orjson.dumps(envelope)[:-1]
        head = b"data: " + self._constant + b',"choices":[{"index":%d,' % index
        self._told[index] = _ChoiceState(head, undecided=self._manner.reads)
        opening = b""
        if (first := self._spec.opening_choice) is not None:
            opening = head + orjson.dumps(first)[1:-1] + self._plain_tail
        shift = 0
        for part in self._echo(index).parts():
            shift += len(part.text)
            logprobs: dict[str, Any] | None = None
            if (most := self._parameters.logprobs) is not None and part.pieces:
                logprobs = self._spec.encode_logprobs((), most, shift, part.pieces)
            opening += head + self._chunk(orjson.dumps(part.text))
            opening += b',"logprobs":' + orjson.dumps(logprobs) + self._tail
        return opening

    def encode_delta(self, batch: list[Delta], index: int) -> bytes:
        """Return one event with the new text of a batch."""
        text = batch[0].text if len(batch) == 1 else "".join([delta.text for delta in batch])
        told = self._told[index]
        if told.undecided and (text := told.held + text).strip():
            # It shows at the first word whether there is more in it than what is said.
            told.undecided, told.held = False, ""
            told.reply = self._manner.reply(text)
        elif told.undecided:
            told.held, text = text, ""
            if self._parameters.logprobs is None:
                return b""
        if told.reply is not None:
            return self._parts(index, told.reply.push(text), told.take(batch, len(text)))
        if self._parameters.logprobs is None:
            return told.head + self._chunk(orjson.dumps(text)) + self._plain_tail
        found = told.take(batch, len(text))
        return self._said(index, text, found) if text or found else b""

    def encode_closing(self, answer: Answer, index: int) -> bytes:
        """Return a choice's finish reason, without text (R21); after the last choice's the usage.

        Without stream_options the usage is on the last such chunk (S0); with include_usage it has a
        chunk of its own; with include_usage false there is none (R22).
        """
        self._answers[index] = answer
        told = self._told[index]
        before = b""
        if told.held:
            # Nothing but white space was said.
            before = self._said(index, told.held, told.take((), len(told.held)))
        elif told.reply is not None:
            before = self._parts(index, told.reply.close(), [])
        last = {
            **self._spec.last_choice,
            "logprobs": None,
            **encode_finish(answer.finish, told.reply),
        }
        chunk: dict[str, Any] = {"choices": [{"index": index, **last}]}
        if new := [warning for warning in answer.warnings if warning not in self._warned]:
            self._warned.update(new)
            chunk["warnings"] = new
        chunk |= encode_verdict(answer)
        if self._include_usage:
            chunk["usage"] = None
        prompts = len(self._echoes)
        choices = prompts * self._parameters.n
        if len(self._answers) < choices or self._include_usage is False:
            return before + self._event(chunk)
        usage = total_usage([self._answers[each] for each in range(choices)], prompts)
        if self._include_usage is None:
            return before + self._event(chunk | {"usage": usage})
        return before + self._event(chunk) + self._event({"choices": [], "usage": usage})

    def _said(self, index: int, text: str, found: list[TokenLogprob]) -> bytes:
        """Return an event with text and its tokens; others with what tokens do not fit into it."""
        head, block = self._told[index].head, b""
        for tokens in split_told(found, logprob_size):
            block += head + self._chunk(orjson.dumps(text))
            block += b',"logprobs":' + orjson.dumps(self._shown(tokens, index)) + self._tail
            text = ""
        return block

    def _parts(self, index: int, deltas: list[Any], found: list[TokenLogprob]) -> bytes:
        """Return an event for each part of a message; the first ones tell of the tokens."""
        tokens = [*split_told(found, logprob_size)] if found else []
        parts = max(len(deltas), len(tokens))
        deltas = [*deltas, *[{"content": ""}] * (parts - len(deltas))]
        tokens += [[]] * (parts - len(tokens))
        block = b""
        for delta, told in zip(deltas, tokens, strict=True):
            said = {"role": "assistant", **delta} if self._roles else delta
            choice = orjson.dumps({"delta": said, "logprobs": self._shown(told, index)})
            block += self._told[index].head + choice[1:-1] + self._tail
        return block

    def _event(self, rest: dict[str, Any]) -> bytes:
        return b"data: " + self._constant + b"," + orjson.dumps(rest)[1:] + b"\n\n"

    def _shown(self, found: list[TokenLogprob], index: int) -> dict[str, Any] | None:
        if not found or self._parameters.logprobs is None:
            return None
        shift = len(self._echo(index).text)
        return self._spec.encode_logprobs(found, self._parameters.logprobs, shift, ())

    def _echo(self, index: int) -> Echo:
        return self._echoes[index // self._parameters.n]


@dataclass(slots=True)
class _ChoiceState:
    """What was streamed of one choice: a token is told of when its text is, not before."""

    # What its chunks begin with.
    head: bytes
    # Whether it is not known yet if the text has to be taken apart, and what came until then.
    undecided: bool
    held: str = ""
    reply: ReplyParser | None = None
    _chars: int = 0
    _waiting: list[TokenLogprob] = field(default_factory=list)

    def take(self, batch: Sequence[Delta], chars: int) -> list[TokenLogprob]:
        """Take a batch with so much text; return the tokens that begin in what is out by now."""
        self._chars += chars
        self._waiting += [delta.logprob for delta in batch if delta.logprob is not None]
        found = logprobs_within(self._waiting, self._chars)
        del self._waiting[: len(found)]
        return found

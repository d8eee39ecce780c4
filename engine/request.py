"""What an engine is asked: a prompt, how to sample, and how urgent it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from secrets import token_hex
from typing import Any, Literal


class Priority(IntEnum):
    """Order of admission; a lower value goes first, equal values in order of arrival."""

    INTERACTIVE = 0
    JOB = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat, its content already flattened to text.

    `tool_calls` are the functions that an assistant's turn called, in OpenAI's shape, and
    `tool_call_id` says which of them a tool's turn is the result of.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def to_template(self) -> dict[str, Any]:
        """Return the turn as chat templates know it, without what it has not."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                turn[name] = value
        if self.tool_calls:
            turn["tool_calls"] = [dict(call) for call in self.tool_calls]
        return turn


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that the model's own chat template is to turn into a prompt.

    `tools` are the functions the model is told of, in OpenAI's shape.
    """

    messages: tuple[Message, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()


# Text or token ids: what a model is fed.
RenderedPrompt = str | tuple[int, ...]
# That, or a chat for the engine to render.
Prompt = RenderedPrompt | Chat
# Whether a text prompt becomes a user turn of the chat template (`engine.chat_template`).
TemplateMode = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to end; the fields carry OpenAI's and vLLM's meanings.

    Values are taken as valid: the edges (`handler.request`, `handler.openai`) refuse bad ones with
    a message that names the field. `temperature` 0 is greedy; `top_k` -1 is all tokens; `seed` None
    is a random one; `max_tokens` None runs to the end of the context. `draft_tokens` is how many a
    draft model guesses at a time and `draft_threshold` how sure it must be of each; None for both
    leaves it to the engine. `lora` is the adapter to generate with, None for the bare model, and
    `prompt_cache` names a prompt that was saved, or is to be.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = None
    draft_tokens: int | None = None
    draft_threshold: float | None = None
    lora: str | None = None
    prompt_cache: str | None = None
    _non_defaults: Mapping[str, Any] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def to_wire(self) -> dict[str, Any]:
        """Return what is not as it is by default as JSON-ready values, the inverse of `from_wire`.

        Most requests set a few of these, and each takes its time on either side.
        """
        wire = dict(self.non_defaults)
        if self.logit_bias:
            wire["logit_bias"] = [[token, bias] for token, bias in self.logit_bias.items()]
        return wire

    @property
    def non_defaults(self) -> Mapping[str, Any]:
        """What is not as it is by default; looked up once, for many requests share one of these."""
        if self._non_defaults is None:
            non_defaults = {
                name: value
                for name, value, default in zip(
                    _SAMPLING_FIELDS, _sampling_values(self), _SAMPLING_DEFAULTS, strict=True
                )
                if value != default
            }
            object.__setattr__(self, "_non_defaults", non_defaults)
            return non_defaults
        return self._non_defaults

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> SamplingParams:
        """Rebuild parameters that `to_wire` made."""
        made: dict[str, Any] = {name: tuple(wire[name]) for name in _TUPLES & wire.keys()}
        if "logit_bias" in wire:
            made["logit_bias"] = dict(wire["logit_bias"])
        return cls(**wire | made)


_TUPLES = {"stop", "stop_token_ids"}
_SAMPLING_FIELDS = tuple(each.name for each in fields(SamplingParams) if each.init)
_sampling_values = attrgetter(*_SAMPLING_FIELDS)
_SAMPLING_DEFAULTS = _sampling_values(SamplingParams())


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation: what `Engine.generate` takes.

    `timeout_s` counts from the call, waiting in the queue included; None is the engine's default.
    `chat_template` says whether a text prompt becomes a user turn of the model's chat template.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = field(default_factory=lambda: token_hex(16))
    priority: Priority = Priority.JOB
    timeout_s: float | None = None
    chat_template: TemplateMode = "off"


def prompt_from_wire(wire: str | list[int] | dict[str, Any]) -> Prompt:
    """Rebuild a prompt from what JSON makes of it."""
    if isinstance(wire, dict):
        messages = tuple(
            Message(**message | {"tool_calls": tuple(message["tool_calls"])})
            for message in wire["messages"]
        )
        return Chat(messages, wire["template_kwargs"], tuple(wire["tools"]))
    return tuple(wire) if isinstance(wire, list) else wire

"""A request to an engine: a prompt, sampling parameters and a priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from secrets import token_hex
from typing import Any, Literal

from engine.reply.reply_format import ToolForm


class Priority(IntEnum):
    """Order of admission: lower values first, equal values in order of arrival."""

    INTERACTIVE = 0
    JOB = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class ChatImage:
    """An image in a turn of a chat: the file in base64, and its place in the turn's text.

    `position` is the number of characters of the text before the image.
    """

    data: str
    position: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat, with its content as plain text.

    `tool_calls` are the functions that an assistant turn called, in OpenAI's format. `tool_call_id`
    is the call of which a tool turn is the result. `images` are in the order of their positions.
    `reasoning` is what an assistant turn thought before its content; chat templates leave it out
    where the model was trained without it.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    images: tuple[ChatImage, ...] = ()
    reasoning: str = ""

    def to_template(self, image_marker: str = "") -> dict[str, Any]:
        """Return the turn as chat templates expect it, without absent fields.

        `image_marker` is the text that takes the place of each image.
        """
        turn: dict[str, Any] = {"role": self.role, "content": self._mark_images(image_marker)}
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                turn[name] = value
        if self.tool_calls:
            turn["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.reasoning:
            turn["reasoning_content"] = self.reasoning
        return turn

    def _mark_images(self, marker: str) -> str:
        if not self.images or not marker:
            return self.content
        starts = [0, *(image.position for image in self.images)]
        ends = [*starts[1:], len(self.content)]
        return marker.join(self.content[start:end] for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, which the model's chat template renders as a prompt.

    `tools` are the functions that the model may call, in OpenAI's format. `continues_last` makes
    the answer continue the last message, which is an assistant's, instead of following it.
    `required_calls` are the functions of which the answer must call one, none if it need not call
    any. Without `parallel_calls` it may have one call. Both are for engines that keep them
    themselves; with others a grammar holds the answer.
    """

    messages: tuple[Message, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    continues_last: bool = False
    required_calls: tuple[str, ...] = ()
    parallel_calls: bool = True

    @property
    def images(self) -> tuple[ChatImage, ...]:
        """The images of all messages, in their order."""
        return tuple([image for message in self.messages for image in message.images])


# The model's input: text or token ids.
RenderedPrompt = str | tuple[int, ...]
# The same, or a chat that the engine renders.
Prompt = RenderedPrompt | Chat
# Whether a text prompt becomes a user turn of the chat template (`engine.prompts.chat_template`).
TemplateMode = Literal["auto", "on", "off"]


# The value of `truncate_prompt_tokens` for a prompt that leaves room for the answer.
FIT_CONTEXT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StopScope:
    """The parts of an output besides its text, where stop strings do not count.

    `functions` are the names of the functions that the model may call. `tool_form` and
    `constrains_calls` are those of `ReplyFormat`. `starts_in_reasoning` means that the prompt has
    opened the reasoning.
    """

    functions: tuple[str, ...] = ()
    tool_form: ToolForm | None = None
    constrains_calls: bool = False
    starts_in_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop; the fields have OpenAI's and vLLM's meanings.

    The values must be valid: `handler.input` and `handler.apis.openai` refuse invalid ones with a
    message that names the field. `temperature` 0 is greedy; `top_k` -1 allows all tokens; `seed`
    None is random; `max_tokens` None runs to the end of the context. Before `min_tokens` neither
    an end token nor anything in `stop` or `stop_token_ids` ends the answer. `stop` counts where
    `stop_scope` says; without one, in the whole output. `stop_in_reasoning` is whether it counts in
    the reasoning and in calls too; None for the setting STOP_IN_REASONING. If there are any
    `allowed_token_ids`, the answer has no other tokens. With `may_think` a grammar or schema lets
    the model think first. `draft_tokens` is how many tokens a draft model proposes at a time, and
    `draft_threshold` the probability that each must have; None leaves them to the engine. `lora` is
    the adapter to use, None for the base model. `truncate_prompt_tokens` is how many tokens at the
    end of the prompt are kept; -1 for as many as leave room for the answer, None for all. With
    `skip_special_tokens` false, special tokens are in the text, also the one that ends the answer.
    `unset` names the parameters that the client did not send: no warning is about them, and the
    openai engine leaves them to its server.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_scope: StopScope | None = None
    stop_in_reasoning: bool | None = None
    may_think: bool = False
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = None
    draft_tokens: int | None = None
    draft_threshold: float | None = None
    lora: str | None = None
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    unset: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    _non_defaults: Mapping[str, Any] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the values that differ from their defaults as JSON-ready values.

        The inverse of `from_wire`. Most requests set a few fields, and each field takes time on
        both sides.
        """
        wire = dict(self.non_defaults)
        if self.logit_bias:
            wire["logit_bias"] = [[token, bias] for token, bias in self.logit_bias.items()]
        if self.unset:
            wire["unset"] = [*self.unset]
        if self.stop_scope is not None:
            wire["stop_scope"] = asdict(self.stop_scope)
        return wire

    @property
    def non_defaults(self) -> Mapping[str, Any]:
        """The values that differ from their defaults; cached, as requests may share one object."""
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
        """Rebuild parameters from the result of `to_wire`."""
        converted: dict[str, Any] = {
            name: tuple(wire[name]) for name in _TUPLE_FIELDS & wire.keys()
        }
        if "unset" in wire:
            converted["unset"] = frozenset(wire["unset"])
        if "logit_bias" in wire:
            converted["logit_bias"] = dict(wire["logit_bias"])
        if "stop_scope" in wire:
            scope = wire["stop_scope"]
            converted["stop_scope"] = StopScope(**scope | {"functions": tuple(scope["functions"])})
        return cls(**wire | converted)


_TUPLE_FIELDS = {"allowed_token_ids", "stop", "stop_token_ids"}
_SAMPLING_FIELDS = tuple(
    each.name for each in fields(SamplingParams) if each.init and each.name != "unset"
)
_sampling_values = attrgetter(*_SAMPLING_FIELDS)
_SAMPLING_DEFAULTS = _sampling_values(SamplingParams())


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The argument of `Engine.generate`.

    `timeout_s` counts from the call, queueing included; None is the engine's default.
    `chat_template` is whether a text prompt becomes a user turn of the model's chat template.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = field(default_factory=lambda: token_hex(16))
    priority: Priority = Priority.JOB
    timeout_s: float | None = None
    chat_template: TemplateMode = "off"


def prompt_from_wire(wire: str | list[int] | dict[str, Any]) -> Prompt:
    """Rebuild a prompt from its JSON form."""
    if isinstance(wire, dict):
        messages = tuple(
            Message(
                **message
                | {
                    "tool_calls": tuple(message["tool_calls"]),
                    "images": tuple([ChatImage(**image) for image in message["images"]]),
                }
            )
            for message in wire["messages"]
        )
        return Chat(
            messages,
            wire["template_kwargs"],
            tuple(wire["tools"]),
            wire["continues_last"],
            tuple(wire["required_calls"]),
            wire["parallel_calls"],
        )
    return tuple(wire) if isinstance(wire, list) else wire

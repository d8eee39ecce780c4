"""The differences between the completions and the chat endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.json_object import JsonObject
from engine import PromptToken, TokenLogprob
from engine.reply.reply_format import ReplyFormat, ToolForm
from engine.request import Prompt
from handler.apis.openai.parameters import OpenAIInput
from handler.generation.completed_answer import CompletedAnswer
from handler.input.constraints import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointContent:
    """The prompts of a body, and how its answers are read and held to a form.

    The fields mean what they mean in `ParsedCall`.
    """

    prompts: tuple[Prompt, ...]
    reply_format: ReplyFormat | None
    constraint: Constraint | None
    field_names: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """How an endpoint reads request bodies and encodes responses.

    `encode_answer` returns the keys of a choice that contain the answer. Its second argument is the
    echoed prompt, which comes before the answer. `encode_chunk` returns the key of a streamed
    choice with a new text; the text and the result are JSON. `encode_chunk_with_role` adds the
    role, for a dialect that has it in every delta. `has_chat_prompt` is whether a body has one
    prompt, which is a chat. `opening_choice` and `last_choice` are the first and the last choice of
    a stream; Without `opening_choice`, the stream starts with text.
    """

    id_prefix: str
    object: str
    chunk_object: str
    input_model: type[OpenAIInput]
    read_content: Callable[[JsonObject, ToolForm | None], EndpointContent]
    encode_answer: Callable[[CompletedAnswer, str], JsonObject]
    encode_chunk: Callable[[bytes], bytes]
    encode_chunk_with_role: Callable[[bytes], bytes]
    encode_logprobs: Callable[[Sequence[TokenLogprob], int, int, Sequence[PromptToken]], JsonObject]
    has_chat_prompt: bool
    opening_choice: JsonObject | None
    last_choice: JsonObject

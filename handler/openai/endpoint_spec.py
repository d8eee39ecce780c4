"""What makes completions and chats two routes of one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import TokenLogprob
from engine.request import Prompt
from handler.openai.parameters import OpenAIInput
from handler.openai.response_mode import ResponseMode


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """How a family of routes differs from the others: what it reads and what its bodies look like.

    `text` and `chunk` make the part of a choice that holds text, whole and streamed;
    `opening_choice` and `last_choice` are a stream's first and last, None for no first one.
    `chunk_with_role` is for a dialect that wants the role in each.
    """

    id_prefix: str
    object: str
    chunk_object: str
    input_model: type[OpenAIInput]
    read_prompts: Callable[[Mapping[str, Any]], Sequence[Prompt]]
    encode_text: Callable[[str], dict[str, Any]]
    encode_chunk: Callable[[bytes], bytes]
    encode_chunk_with_role: Callable[[bytes], bytes]
    read_response_mode: Callable[[Mapping[str, Any]], ResponseMode]
    encode_logprobs: Callable[[Sequence[TokenLogprob], int, int, Sequence[str]], dict[str, Any]]
    opening_choice: dict[str, Any] | None
    last_choice: dict[str, Any]

"""What makes completions and chats two routes of one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import TokenLogprob
from engine.request import Prompt
from handler.openai.parameters import OpenAIInput
from handler.openai.response_mode import Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a family of routes differs from the others: what it reads and what its bodies look like.

    `text` and `chunk` make the part of a choice that holds text, whole and streamed;
    `opening_choice` and `last_choice` are a stream's first and last, None for no first one.
    `chunk_with_role` is for a dialect that wants the role in each.
    """

    id_prefix: str
    object: str
    chunk_object: str
    parameters: type[OpenAIInput]
    prompts: Callable[[Mapping[str, Any]], Sequence[Prompt]]
    text: Callable[[str], dict[str, Any]]
    chunk: Callable[[bytes], bytes]
    chunk_with_role: Callable[[bytes], bytes]
    manner: Callable[[Mapping[str, Any]], Manner]
    logprobs: Callable[[Sequence[TokenLogprob], int, int, Sequence[str]], dict[str, Any]]
    opening_choice: dict[str, Any] | None
    last_choice: dict[str, Any]

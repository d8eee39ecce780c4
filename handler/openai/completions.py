"""`/v1/completions`: a prompt in, its continuation out (R1-R4, R19-R22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.request import RenderedPrompt
from handler.errors import InvalidRequest
from handler.messages import check_text
from handler.openai.codec import Shape


def _prompt(body: Mapping[str, Any]) -> RenderedPrompt:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    elif isinstance(prompt, list) and prompt and _is_several(prompt):
        if body.get("stream"):
            raise InvalidRequest("Streaming is only supported for single prompts", "prompt")  # R28
        raise InvalidRequest("prompt must be one prompt, got an array of several", "prompt")
    if isinstance(prompt, str) and prompt:
        check_text(prompt, "prompt")
        return prompt
    if isinstance(prompt, list) and prompt and all(map(_is_token, prompt)):
        return tuple(prompt)
    # R6 wants these very words, whatever is wrong with it.
    raise InvalidRequest("Invalid prompt format", "prompt")


def _is_several(prompts: list[Any]) -> bool:
    return any(all(isinstance(each, kind) for each in prompts) for kind in (str, list))


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


COMPLETIONS = Shape(
    id_prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    prompt=_prompt,
    text=lambda text: {"text": text},
    chunk=lambda text: b'"text":' + text,
    opening_choice=None,
    last_choice={"text": ""},
)

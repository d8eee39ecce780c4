"""`/v1/completions`: prompts in, their continuations out (R1-R6, R13, R14, R19-R22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.request import RenderedPrompt
from handler.errors import InvalidRequest
from handler.messages import check_text
from handler.openai import logprobs
from handler.openai.endpoint_spec import Shape
from handler.openai.parameters import CompletionInput
from handler.openai.response_mode import Manner
from handler.openai.structured import read_response_format
from handler.sampling import check_token_count, read_token_ids

# As many as OpenAI takes; each one is a generation.
MAX_PROMPTS = 2048
_PLAIN = Manner()


def _prompts(body: Mapping[str, Any]) -> tuple[RenderedPrompt, ...]:
    """Return the prompts of R5's four forms. Raises InvalidRequest in R6's very words."""
    given = body.get("prompt")
    check_token_count(given, "prompt")
    if not isinstance(given, list) or read_token_ids(given):
        given = [given]
    if len(given) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt must have at most {MAX_PROMPTS} prompts, got {len(given)}", "prompt"
        )
    if len({type(each) for each in given}) != 1:
        raise InvalidRequest("Invalid prompt format", "prompt")
    return tuple(map(_prompt, given))


def _prompt(given: Any) -> RenderedPrompt:
    if isinstance(given, str) and given:
        check_text(given, "prompt")
        return given
    if ids := read_token_ids(given):
        return ids
    raise InvalidRequest("Invalid prompt format", "prompt")


def _manner(body: Mapping[str, Any]) -> Manner:
    schema = read_response_format(body)
    return _PLAIN if schema is None else Manner(schema=schema)


COMPLETIONS = Shape(
    id_prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    parameters=CompletionInput,
    prompts=_prompts,
    text=lambda text: {"text": text},
    chunk=lambda text: b'"text":' + text,
    chunk_with_role=lambda text: b'"text":' + text,
    manner=_manner,
    logprobs=logprobs.legacy,
    opening_choice=None,
    last_choice={"text": ""},
)

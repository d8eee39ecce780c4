"""`/v1/completions`: prompts in, their continuations out (R1-R6, R13, R14, R19-R22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.request import RenderedPrompt
from handler.errors import InvalidRequest
from handler.messages import check_text
from handler.openai import logprobs
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.parameters import CompletionInput
from handler.openai.response_mode import ResponseMode
from handler.openai.structured import read_response_format
from handler.sampling import check_token_count, read_token_ids

# As many as OpenAI takes; each one is a generation.
MAX_PROMPTS = 2048
_PLAIN = ResponseMode()


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


def _manner(body: Mapping[str, Any]) -> ResponseMode:
    schema = read_response_format(body)
    return _PLAIN if schema is None else ResponseMode(schema=schema)


COMPLETIONS = EndpointSpec(
    id_prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    input_model=CompletionInput,
    read_prompts=_prompts,
    encode_text=lambda text: {"text": text},
    encode_chunk=lambda text: b'"text":' + text,
    encode_chunk_with_role=lambda text: b'"text":' + text,
    read_response_mode=_manner,
    encode_logprobs=logprobs.encode_completion_logprobs,
    opening_choice=None,
    last_choice={"text": ""},
)

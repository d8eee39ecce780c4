"""The `/v1/completions` endpoint."""

from __future__ import annotations

from typing import Any

from common.json_object import JsonObject
from engine.reply.reply_format import ToolForm
from engine.request import RenderedPrompt
from handler.apis.openai import logprobs
from handler.apis.openai.endpoint_spec import EndpointContent, EndpointSpec
from handler.apis.openai.parameters import CompletionInput
from handler.errors import InvalidRequest
from handler.input.constraints import read_constraint
from handler.input.sampling import check_token_count, read_token_ids
from handler.input.text import check_text

# OpenAI's limit. Each prompt is at least one generation.
MAX_PROMPTS = 2048


def _read_content(body: JsonObject, tool_form: ToolForm | None) -> EndpointContent:
    return EndpointContent(
        prompts=_read_prompts(body), reply_format=None, constraint=read_constraint(body)
    )


def _read_prompts(body: JsonObject) -> tuple[RenderedPrompt, ...]:
    """Return the prompts of a body, in any of the API's four forms.

    Raises:
        InvalidRequest: the form is wrong, with the message that clients match on, or there are too
            many prompts.
    """
    prompts = body.get("prompt")
    check_token_count(prompts, "prompt")
    if not isinstance(prompts, list) or read_token_ids(prompts):
        prompts = [prompts]
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt must have at most {MAX_PROMPTS} prompts, got {len(prompts)}", "prompt"
        )
    if len({type(prompt) for prompt in prompts}) != 1:
        raise InvalidRequest("Invalid prompt format", "prompt")
    return tuple(map(_check_prompt, prompts))


def _check_prompt(prompt: Any) -> RenderedPrompt:
    if isinstance(prompt, str) and prompt:
        check_text(prompt, "prompt")
        return prompt
    if ids := read_token_ids(prompt):
        return ids
    raise InvalidRequest("Invalid prompt format", "prompt")


COMPLETIONS = EndpointSpec(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    input_model=CompletionInput,
    read_content=_read_content,
    encode_answer=lambda answer, echo: {"text": echo + answer.text},
    encode_chunk=lambda text: b'"text":' + text,
    encode_chunk_with_role=lambda text: b'"text":' + text,
    encode_logprobs=logprobs.encode_completion_logprobs,
    has_chat_prompt=False,
    opening_choice=None,
    last_choice={"text": ""},
)

"""Count the tokens of a call, and read whether a stream reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.openai.dialect import Dialect
from handler.errors import InvalidRequest
from handler.generation.completed_answer import CompletedAnswer


class CachedTokens(TypedDict):
    """The tokens of a prompt that were not computed again."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """The tokens of answers that are their reasoning."""

    reasoning_tokens: int


class OpenAIUsage(TypedDict):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: NotRequired[ReasoningTokens]


def read_include_usage(body: JsonObject, dialect: Dialect, *, streaming: bool) -> bool | None:
    """Return whether a stream ends with a usage chunk; None puts the usage on the last choice.

    `stream_options` may have any other member, such as OpenAI's `include_obfuscation`. A null
    counts as unset.

    Raises:
        InvalidRequest: `stream_options` is not an object, its `include_usage` is not a boolean, or
            the response is not streamed.
    """
    options = body.get("stream_options")
    if options is None:
        return None if dialect.usage_by_default else False
    if not streaming:
        raise InvalidRequest("stream_options must come with stream: true", "stream_options")
    allowed = "stream_options must be an object with include_usage: true or false"
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"{allowed}, got {describe_value(options)}", "stream_options")
    include_usage = options.get("include_usage")
    if include_usage is None:
        return False
    if not isinstance(include_usage, bool):
        raise InvalidRequest(f"{allowed}, got {describe_value(include_usage)}", "stream_options")
    return include_usage


def total_usage(answers: Sequence[CompletedAnswer], prompt_count: int) -> OpenAIUsage:
    """Return the OpenAI usage object: each prompt counts once, each candidate's tokens count.

    The cached tokens of a prompt are the tokens that its first candidate reused. Details of the
    completion are there if one of the answers has reasoning.
    """
    candidate_count = len(answers) // prompt_count
    first_usages = [answer.finish.usage for answer in answers[::candidate_count]]
    prompt_tokens = sum(usage.prompt_tokens for usage in first_usages)
    completion_tokens = sum(answer.finish.usage.completion_tokens for answer in answers)
    cached_tokens = sum(usage.cached_tokens for usage in first_usages)
    total: OpenAIUsage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if reasoning_tokens := sum(answer.reasoning_tokens for answer in answers):
        total["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return total

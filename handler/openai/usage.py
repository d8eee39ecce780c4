"""The tokens of a call: how many, and whether a stream tells (R4, R5, R22, R23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handler.completed_answer import CompletedAnswer
from handler.errors import InvalidRequest
from handler.openai.dialect import Dialect
from handler.sampling import describe_value


def read_include_usage(
    body: Mapping[str, Any], dialect: Dialect, *, streaming: bool
) -> bool | None:
    """Return whether a stream ends with a chunk for its usage; None puts it on the last choice's.

    `stream_options` may have any other member, such as OpenAI's `include_obfuscation`, and a null
    counts as unset (R66).

    Raises:
        InvalidRequest: `stream_options` is not an object, its `include_usage` is not a boolean, or
            the answer is not streamed.
    """
    options = body.get("stream_options")
    if options is None:
        return None if dialect.usage_by_default else False
    if not streaming:
        raise InvalidRequest("stream_options must come with stream: true", "stream_options")
    allowed = "stream_options must be an object with include_usage: true or false"
    if not isinstance(options, Mapping):
        raise InvalidRequest(f"{allowed}, got {describe_value(options)}", "stream_options")
    wanted = options.get("include_usage")
    if wanted is None:
        return False
    if not isinstance(wanted, bool):
        raise InvalidRequest(f"{allowed}, got {describe_value(wanted)}", "stream_options")
    return wanted


def total_usage(answers: Sequence[CompletedAnswer], prompts: int) -> dict[str, Any]:
    """Return the tokens of all answers together: each prompt once, every candidate's own (R5).

    Of a prompt's, those count as cached that its first candidate found in the engine's cache.
    """
    each = len(answers) // prompts
    read = [answer.finish.usage for answer in answers[::each]]
    prompt = sum(usage.prompt_tokens for usage in read)
    completion = sum(answer.finish.usage.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in read)},
    }

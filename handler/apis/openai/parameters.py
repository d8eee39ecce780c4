"""Read the parameters of OpenAI bodies, including the rules of each dialect."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import SamplingParams
from handler.apis.core.parameters import Parameters
from handler.apis.openai.dialect import Dialect
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint
from handler.input.sampling import (
    MAX_INT32,
    SamplingDefaults,
    SamplingInput,
    build_sampling,
    check_bias_count,
    validate_model,
)
from handler.input.text import check_text

MAX_N = 128
MAX_BEST_OF = 20
# Completions use no chat template and call no functions.
CHAT_ONLY_PARAMETERS = (
    "chat_template_kwargs",
    "continue_final_message",
    "enable_thinking",
    "parallel_tool_calls",
    "reasoning_effort",
    "tool_choice",
    "tools",
)
_DRAFT_PARAMETERS = ("num_assistant_tokens", "assistant_confidence_threshold")


class CompletionInput(SamplingInput):
    """Parameters of `/completions`."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | Literal[-1] | None = Field(
        None, description=f"a whole number from 0 to {MAX_INT32}"
    )
    n: int | None = Field(None, ge=1, le=MAX_N, description=f"a whole number from 1 to {MAX_N}")
    best_of: int | None = Field(
        None, ge=1, le=MAX_BEST_OF, description=f"a whole number from 1 to {MAX_BEST_OF}"
    )
    length_penalty: float | None = Field(None, description="a number")
    echo: bool | None = Field(None, description="true or false")
    logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")
    suffix: str | None = Field(None, description="a string")
    prompt_logprobs: int | None = Field(
        None, ge=0, le=20, description="a whole number from 0 to 20"
    )


class ChatInput(SamplingInput):
    """Parameters of `/chat/completions`."""

    n: int | None = Field(None, ge=1, le=MAX_N, description=f"a whole number from 1 to {MAX_N}")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")
    prompt_logprobs: int | None = Field(
        None, ge=0, le=20, description="a whole number from 0 to 20"
    )


OpenAIInput = CompletionInput | ChatInput


def read_parameters(
    model: type[OpenAIInput],
    body: JsonObject,
    dialect: Dialect,
    max_tokens: int | None,
    constraint: Constraint | None = None,
) -> tuple[Parameters, tuple[str, ...]]:
    """Return the parameters of a body in a dialect, and a warning for each ignored one.

    The text is held to `constraint`, if any.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
    """
    _check_stop_count(body, dialect)
    check_bias_count(body)
    fields = validate_model(model, body)
    draft_param = _read_draft_param(body) if dialect.rejects_unavailable_draft else None
    sampling, warnings = build_sampling(fields, body, SamplingDefaults(max_tokens=max_tokens))
    streaming = bool(fields.stream)
    echo = isinstance(fields, CompletionInput) and bool(fields.echo)
    if sampling.max_tokens == 0 and not echo:
        raise InvalidRequest("max_tokens may be 0 only with echo: true", "max_tokens")
    n = fields.n or 1
    candidates, length_penalty, suffix = n, 1.0, ""
    if isinstance(fields, CompletionInput):
        if streaming and fields.best_of is not None:
            # The best candidate is known only when all are complete.
            warnings += ("best_of was ignored, because the answer is streamed",)
        else:
            candidates = _read_candidates(fields, n, dialect)
        length_penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
        suffix = fields.suffix or ""
        check_text(suffix, "suffix")
        warnings += tuple(
            f"{name} is only for chats and was ignored"
            for name in CHAT_ONLY_PARAMETERS
            if body.get(name)
        )
    logprobs = _read_logprobs(fields, dialect, streaming=streaming)
    if logprobs is not None or candidates > n:
        sampling = replace(sampling, logprobs=logprobs or 0)
    sampling = _apply_dialect(sampling, fields, dialect, streaming=streaming)
    if constraint is not None:
        sampling = constraint.apply(sampling)
    if n > 1 and (sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1):
        warnings += (f"all {n} choices are alike: the sampling leaves no choice",)
    parameters = Parameters(
        sampling=sampling,
        streaming=streaming,
        n=n,
        candidates=candidates,
        length_penalty=length_penalty,
        echo=echo,
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        suffix=suffix,
        draft_param=draft_param,
    )
    return parameters, warnings


def _read_candidates(fields: CompletionInput, n: int, dialect: Dialect) -> int:
    best_of = fields.best_of
    if best_of is None:
        if dialect.best_of_is_one and n > 1:
            raise InvalidRequest(f"n must be at most best_of, which is 1, got {n}", "n")
        return n
    if best_of < n:
        raise InvalidRequest(f"best_of must be at least n, which is {n}, got {best_of}", "best_of")
    return best_of


def _read_logprobs(fields: OpenAIInput, dialect: Dialect, *, streaming: bool) -> int | None:
    if isinstance(fields, CompletionInput):
        alternatives = fields.logprobs
    else:
        alternatives = (fields.top_logprobs or 0) if fields.logprobs else None
        if alternatives is None and fields.top_logprobs is not None:
            raise InvalidRequest("top_logprobs must come with logprobs: true", "top_logprobs")
    if alternatives is not None and dialect.one_logprob:
        if isinstance(fields, CompletionInput) and alternatives != 1:
            raise InvalidRequest(f"logprobs must be 1, got {alternatives}", "logprobs")
        if streaming:
            raise InvalidRequest("logprobs must not come with stream: true", "logprobs")
    return alternatives


def _check_stop_count(body: JsonObject, dialect: Dialect) -> None:
    """Check the number of stop strings against the dialect's limit. Raises InvalidRequest.

    This must precede `validate_model`, whose message has the limit of the other dialects.
    """
    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > dialect.max_stops:
        raise InvalidRequest(
            f"stop must have at most {dialect.max_stops} strings, got {len(stop)}", "stop"
        )


def _read_draft_param(body: JsonObject) -> str | None:
    """Return the parameter of a draft model, of which one may be set. Raises InvalidRequest."""
    names = [name for name in _DRAFT_PARAMETERS if body.get(name) is not None]
    if len(names) > 1:
        raise InvalidRequest(f"{names[0]} must not come with {names[1]}", names[0])
    return names[0] if names else None


def _apply_dialect(
    sampling: SamplingParams, fields: SamplingInput, dialect: Dialect, *, streaming: bool
) -> SamplingParams:
    if dialect.top_p_above_zero and sampling.top_p == 0:
        raise InvalidRequest("top_p must be above 0, at most 1, got 0", "top_p")
    if dialect.stop_in_stream and streaming:
        if fields.include_stop_str_in_output is False:
            raise InvalidRequest(
                "include_stop_str_in_output must be true with stream: true, got "
                f"{describe_value(fields.include_stop_str_in_output)}",
                "include_stop_str_in_output",
            )
        sampling = replace(sampling, include_stop_str_in_output=True)
    limit = dialect.max_tokens_ignoring_eos
    if limit is not None and sampling.ignore_eos:
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        max_tokens = getattr(fields, name)
        if max_tokens is not None and max_tokens > limit:
            raise InvalidRequest(
                f"{name} must be at most {limit} with ignore_eos: true, got {max_tokens}", name
            )
        # A configured default may exceed the limit; `max_tokens: 0` is valid and stays 0.
        max_tokens = limit if sampling.max_tokens is None else min(sampling.max_tokens, limit)
        sampling = replace(sampling, max_tokens=max_tokens)
    return sampling

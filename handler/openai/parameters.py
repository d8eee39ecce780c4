"""What OpenAI bodies may hold beyond what all dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from engine import SamplingParams
from handler.errors import InvalidRequest
from handler.messages import check_text
from handler.openai.dialect import Dialect
from handler.parameter_names import IGNORED
from handler.parse_cache import ParseCache
from handler.sampling import (
    MAX_INT32,
    SamplingDefaults,
    SamplingInput,
    build_sampling,
    check_bias_count,
    describe_value,
    validate_model,
)

MAX_N = 128
MAX_BEST_OF = 20
# A prompt has no template and calls no functions.
CHAT_ONLY_PARAMETERS = (
    "chat_template_kwargs",
    "enable_thinking",
    "parallel_tool_calls",
    "tool_choice",
    "tools",
)
_OF_DRAFT = ("num_assistant_tokens", "assistant_confidence_threshold")


class CompletionInput(SamplingInput):
    """`/completions` (R8, R13-R15)."""

    max_tokens: int | None = Field(
        None, ge=0, le=MAX_INT32, description=f"a whole number from 0 to {MAX_INT32}"
    )
    n: int | None = Field(None, ge=1, le=MAX_N, description=f"a whole number from 1 to {MAX_N}")
    best_of: int | None = Field(
        None, ge=1, le=MAX_BEST_OF, description=f"a whole number from 1 to {MAX_BEST_OF}"
    )
    length_penalty: float | None = Field(None, description="a number")
    echo: bool | None = Field(None, description="true or false")
    logprobs: int | None = Field(None, ge=0, le=5, description="a whole number from 0 to 5")
    suffix: str | None = Field(None, description="a string")


class ChatInput(SamplingInput):
    """`/chat/completions` (R8, R13, R15)."""

    n: int | None = Field(None, ge=1, le=MAX_N, description=f"a whole number from 1 to {MAX_N}")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")


OpenAIInput = CompletionInput | ChatInput

# All that is looked at here.
_MATTERS: Mapping[type[OpenAIInput], frozenset[str]] = {
    CompletionInput: IGNORED | CompletionInput.model_fields.keys() | set(CHAT_ONLY_PARAMETERS),
    ChatInput: IGNORED | ChatInput.model_fields.keys(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A body's parameters as the codec needs them.

    `candidates` answers are generated to a prompt and the best `n` of them returned. `logprobs` is
    how many alternatives are shown with a token, None for no logprobs at all.
    """

    sampling: SamplingParams
    streaming: bool
    n: int
    candidates: int
    length_penalty: float
    echo: bool
    logprobs: int | None
    suffix: str
    warnings: tuple[str, ...]


_KNOWN: ParseCache[Parameters] = ParseCache()


def read_parameters(
    model: type[OpenAIInput],
    body: Mapping[str, Any],
    dialect: Dialect,
    max_tokens: int | None,
    schema: Mapping[str, Any] | None = None,
) -> Parameters:
    """Return what a body asks for in a dialect; `schema` is what the text has to fit.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
    """

    def read() -> Parameters:
        return _read(model, body, dialect, max_tokens, schema)

    if schema is not None:
        return read()
    of_call = (model, dialect.name, max_tokens)
    return _KNOWN.get(body, _MATTERS[model], read, of_call)


def _read(
    model: type[OpenAIInput],
    body: Mapping[str, Any],
    dialect: Dialect,
    max_tokens: int | None,
    schema: Mapping[str, Any] | None,
) -> Parameters:
    _check_stops(body, dialect)
    check_bias_count(body)
    given = validate_model(model, body)
    if dialect.rejects_unavailable_draft:
        _check_draft(body)
    sampling, warnings = build_sampling(given, body, SamplingDefaults(max_tokens=max_tokens))
    streaming = bool(given.stream)
    echo = isinstance(given, CompletionInput) and bool(given.echo)
    if sampling.max_tokens == 0 and not echo:
        raise InvalidRequest("max_tokens may be 0 only with echo: true", "max_tokens")
    n = given.n or 1
    candidates, length_penalty = n, 1.0
    if isinstance(given, CompletionInput):
        candidates = _candidates(given, n, dialect, streaming=streaming)
        length_penalty = 1.0 if given.length_penalty is None else given.length_penalty
        warnings += tuple(
            f"{name} is only for chats and was ignored"
            for name in CHAT_ONLY_PARAMETERS
            if body.get(name)
        )
    logprobs = _logprobs(given, dialect, streaming=streaming)
    if logprobs is not None or candidates > n:
        sampling = replace(sampling, logprobs=logprobs or 0)
    sampling = _in_dialect(sampling, given, dialect, streaming=streaming)
    if schema is not None:
        sampling = replace(sampling, json_schema=schema)
    if n > 1 and (sampling.temperature == 0 or sampling.top_p == 0 or sampling.top_k == 1):
        warnings += (f"all {n} choices are alike: the sampling leaves no choice",)
    return Parameters(
        sampling=sampling,
        streaming=streaming,
        n=n,
        candidates=candidates,
        length_penalty=length_penalty,
        echo=echo,
        logprobs=logprobs,
        suffix=_suffix(given),
        warnings=warnings,
    )


def _candidates(given: CompletionInput, n: int, dialect: Dialect, *, streaming: bool) -> int:
    best_of = given.best_of
    if best_of is None:
        if dialect.best_of_is_one and n > 1:
            raise InvalidRequest(f"n must be at most best_of, which is 1, got {n}", "n")
        return n
    if streaming:
        raise InvalidRequest("best_of must not come with stream: true", "best_of")
    if best_of < n:
        raise InvalidRequest(f"best_of must be at least n, which is {n}, got {best_of}", "best_of")
    return best_of


def _logprobs(given: OpenAIInput, dialect: Dialect, *, streaming: bool) -> int | None:
    if isinstance(given, CompletionInput):
        wanted = given.logprobs
    else:
        wanted = (given.top_logprobs or 0) if given.logprobs else None
        if wanted is None and given.top_logprobs is not None:
            raise InvalidRequest("top_logprobs must come with logprobs: true", "top_logprobs")
    if wanted is not None and dialect.one_logprob:
        if isinstance(given, CompletionInput) and wanted != 1:
            raise InvalidRequest(f"logprobs must be 1, got {wanted}", "logprobs")
        if streaming:
            raise InvalidRequest("logprobs must not come with stream: true", "logprobs")
    return wanted


def _check_stops(body: Mapping[str, Any], dialect: Dialect) -> None:
    """Refuse too many before the others are looked at, whose message knows one number alone."""
    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > dialect.max_stops:
        raise InvalidRequest(
            f"stop must have at most {dialect.max_stops} strings, got {len(stop)}", "stop"
        )


def _suffix(given: OpenAIInput) -> str:
    suffix = (given.suffix or "") if isinstance(given, CompletionInput) else ""
    check_text(suffix, "suffix")
    return suffix


def _check_draft(body: Mapping[str, Any]) -> None:
    """Refuse two manners of drafting at a time (R17)."""
    given = [name for name in _OF_DRAFT if body.get(name) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"{given[0]} must not come with {given[1]}", given[0])


def _in_dialect(
    sampling: SamplingParams, given: SamplingInput, dialect: Dialect, *, streaming: bool
) -> SamplingParams:
    if dialect.top_p_above_zero and sampling.top_p == 0:
        raise InvalidRequest("top_p must be above 0, at most 1, got 0", "top_p")
    if dialect.stop_in_stream and streaming:
        if given.include_stop_str_in_output is False:
            raise InvalidRequest(
                "include_stop_str_in_output must be true with stream: true, got "
                f"{describe_value(given.include_stop_str_in_output)}",
                "include_stop_str_in_output",
            )
        sampling = replace(sampling, include_stop_str_in_output=True)
    most = dialect.max_tokens_ignoring_eos
    if most is not None and sampling.ignore_eos:
        name = "max_tokens" if given.max_completion_tokens is None else "max_completion_tokens"
        asked = getattr(given, name)
        if asked is not None and asked > most:
            raise InvalidRequest(
                f"{name} must be at most {most} with ignore_eos: true, got {asked}", name
            )
        # A default may be above it, and 0 is a wish of its own.
        limit = most if sampling.max_tokens is None else min(sampling.max_tokens, most)
        sampling = replace(sampling, max_tokens=limit)
    return sampling

"""Parse sampling parameters: their ranges, error messages, defaults and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from common.digits import parse_digits
from common.value_description import describe_value
from engine import SamplingParams
from handler.errors import InvalidRequest
from handler.input.parameter_names import IGNORED, has_no_effect

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_INT32 = 2**32 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_DRAFTED = 64
MAX_BIASED_TOKENS = 10_000
MAX_ALLOWED_TOKENS = 1_000
# The maximum of one prompt, and of all prompts of a request together.
MAX_TOKEN_IDS = 1_000_000
# Longer arrays are invalid for every parameter. They are refused without reading their elements.
_MAX_ARRAY_LENGTH = 1_000
# In error messages.

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)]
# llama.cpp's clients send it for an answer without a limit.
NO_LIMIT = -1
_TokenLimit = Annotated[int, Field(ge=1, le=MAX_INT32)] | Literal[-1]
_TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
_Bias = Annotated[float, Field(ge=-100, le=100)]


def as_integer(value: Any) -> Any:
    """Convert a float without a fraction, such as 16.0, to an integer.

    Applies to the elements of an array as well; other values are returned unchanged.

    JSON has one number type, and some clients write every number with a decimal point. A float of
    2**53 or more does not determine which integer the client wrote.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list) and len(value) <= MAX_TOKEN_IDS:
        return [as_integer(each) if isinstance(each, float) else each for each in value]
    return value


def read_token_ids(value: Any) -> tuple[int, ...] | None:
    """Return an array of token ids as a tuple, None for any other value and for too many ids."""
    if not isinstance(value, list) or len(value) > MAX_TOKEN_IDS:
        return None
    ids = tuple(as_integer(value))
    return ids if all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in ids) else None


def as_integer_parameter(value: Any) -> Any:
    """Apply `as_integer`, except to an array that is too long for every parameter."""
    is_long = isinstance(value, list) and len(value) > _MAX_ARRAY_LENGTH
    return value if is_long else as_integer(value)


def check_token_count(prompts: Any, name: str) -> None:
    """Refuse prompts with too many token ids in total, judging by array lengths alone.

    Raises:
        InvalidRequest: naming the field and the maximum.
    """
    if not isinstance(prompts, list):
        return
    count = len(prompts)
    if count <= MAX_TOKEN_IDS:
        count = sum([len(each) for each in prompts if isinstance(each, list)])
    if count > MAX_TOKEN_IDS:
        raise InvalidRequest(
            f"{name} must have at most {MAX_TOKEN_IDS} token ids in all, got {count}", name
        )


class ParameterInput(BaseModel):
    """Base of the parameters of a body; null means unset.

    Strict: "0.5" and true are not numbers. Each description completes the sentence "… must be …"
    of the error that names the field.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    _convert_integers = field_validator("*", mode="before")(as_integer_parameter)


class SamplingInput(ParameterInput):
    """The parameters that OpenAI's API and jobs share."""

    max_tokens: _TokenLimit | None = Field(
        None, description=f"a whole number from 1 to {MAX_INT32}"
    )
    # Chat's newer name for max_tokens. If a request has both, this one applies.
    max_completion_tokens: _TokenLimit | None = Field(
        None, description=f"a whole number from 1 to {MAX_INT32}"
    )
    min_tokens: int | None = Field(
        None, ge=0, le=MAX_INT32, description=f"a whole number from 0 to {MAX_INT32}"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_k: int | None = Field(
        None, ge=-1, le=MAX_INT32, description="a whole number, -1 or 0 for all tokens"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    repetition_penalty: float | None = Field(
        None, gt=0, le=100, description="a number above 0, at most 100"
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="a whole number of up to 64 bits"
    )
    stop: StopStrings | None = Field(
        None,
        description=f"a non-empty string or an array of up to {MAX_STOPS} of them, "
        f"each of up to {MAX_STOP_CHARS} characters",
    )
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=MAX_STOPS)] | None = Field(
        None, description=f"an array of up to {MAX_STOPS} token ids"
    )
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    stop_in_reasoning: bool | None = Field(None, description="true or false")
    ignore_eos: bool | None = Field(None, description="true or false")
    logit_bias: dict[str, _Bias] | None = Field(
        None,
        description=f"an object of up to {MAX_BIASED_TOKENS} token ids and numbers from -100 to "
        "100",
    )
    allowed_token_ids: (
        Annotated[list[_TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None
    ) = Field(None, description=f"an array of 1 to {MAX_ALLOWED_TOKENS} token ids")
    # For speculative decoding with a draft model.
    num_assistant_tokens: int | None = Field(
        None, ge=1, le=MAX_DRAFTED, description=f"a whole number from 1 to {MAX_DRAFTED}"
    )
    assistant_confidence_threshold: float | None = Field(
        None, ge=0, le=1, description="a number from 0 to 1"
    )
    truncate_prompt_tokens: _TokenLimit | None = Field(
        None, description=f"a whole number from 1 to {MAX_INT32}, or -1 for all that fit"
    )
    skip_special_tokens: bool | None = Field(None, description="true or false")
    n: int | None = Field(None, ge=1, le=1, description="1")
    stream: bool | None = Field(None, description="true or false")

    @property
    def token_limit(self) -> int | None:
        """The maximum number of tokens of an answer; None for a body without one."""
        limit = self.max_completion_tokens
        limit = self.max_tokens if limit is None else limit
        return None if limit == NO_LIMIT else limit


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The values of a dialect for parameters that a request does not set."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


# The parameters whose defaults differ between dialects, and thus from those of a loaded model.
DIALECT_PARAMETERS = ("temperature", "top_p", "top_k")

# The defaults of RunPod jobs.
JOB_DEFAULTS = SamplingDefaults(max_tokens=150, temperature=0.7, top_p=0.9, top_k=50)


def read_sampling(
    body: Mapping[str, Any], defaults: SamplingDefaults, path: str = ""
) -> tuple[SamplingParams, bool, tuple[str, ...]]:
    """Return the parameters, whether to stream, and a warning for each ignored parameter.

    `path` is put before a field's name in messages, e.g. "input.sampling_params.".

    Raises:
        InvalidRequest: the message has the field, its value and the allowed values.
    """
    check_bias_count(body, path)
    fields = validate_model(SamplingInput, body, path)
    sampling, warnings = build_sampling(fields, body, defaults, path)
    return sampling, bool(fields.stream), warnings


def check_bias_count(body: Mapping[str, Any], path: str = "") -> None:
    """Refuse a `logit_bias` with too many tokens before parsing it. Raises InvalidRequest."""
    bias = body.get("logit_bias")
    if isinstance(bias, dict) and len(bias) > MAX_BIASED_TOKENS:
        raise InvalidRequest(
            f"{path}logit_bias must have at most {MAX_BIASED_TOKENS} token ids, got {len(bias)}",
            f"{path}logit_bias",
        )


def build_sampling(
    fields: SamplingInput, body: Mapping[str, Any], defaults: SamplingDefaults, path: str = ""
) -> tuple[SamplingParams, tuple[str, ...]]:
    """Build the engine's parameters from validated fields; also return a warning per ignored one.

    Raises:
        InvalidRequest: `logit_bias` has a key that is not a token id, or `min_tokens` is above
            `max_tokens`.
    """
    stop = fields.stop
    sampling = SamplingParams(
        max_tokens=_value_or(fields.token_limit, defaults.max_tokens),
        min_tokens=fields.min_tokens or 0,
        temperature=_value_or(fields.temperature, defaults.temperature),
        top_p=_value_or(fields.top_p, defaults.top_p),
        top_k=_value_or(fields.top_k, defaults.top_k) or -1,
        min_p=_value_or(fields.min_p, 0.0),
        repetition_penalty=_value_or(fields.repetition_penalty, 1.0),
        frequency_penalty=_value_or(fields.frequency_penalty, 0.0),
        presence_penalty=_value_or(fields.presence_penalty, 0.0),
        seed=fields.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        stop_in_reasoning=fields.stop_in_reasoning,
        ignore_eos=bool(fields.ignore_eos),
        logit_bias=_parse_bias(fields.logit_bias, path) if fields.logit_bias else {},
        allowed_token_ids=tuple(fields.allowed_token_ids or ()),
        draft_tokens=fields.num_assistant_tokens,
        draft_threshold=fields.assistant_confidence_threshold,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        skip_special_tokens=fields.skip_special_tokens is not False,
        unset=find_unset(fields),
    )
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"{path}min_tokens must be at most max_tokens, which is {sampling.max_tokens}, got "
            f"{sampling.min_tokens}",
            f"{path}min_tokens",
        )
    # Most bodies have no ignored parameter; building the warnings costs more than all of the above.
    present = IGNORED & body.keys()
    return sampling, _build_warnings(type(fields), present, body, path) if present else ()


def find_unset(fields: BaseModel) -> frozenset[str]:
    """Return the parameters that have the default of a dialect, for a body's validated fields."""
    sent = fields.model_fields_set
    return frozenset(
        name for name in DIALECT_PARAMETERS if name not in sent or getattr(fields, name) is None
    )


def _parse_bias(raw_bias: Mapping[str, float], path: str) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in raw_bias.items():
        if not _is_token_id(key):
            raise InvalidRequest(
                f"{path}logit_bias must be {_describe_allowed(SamplingInput, 'logit_bias')}, "
                f"got the key {describe_value(key)}",
                f"{path}logit_bias",
            )
        bias[int(key)] = value
    return bias


def _build_warnings(
    model: type[SamplingInput], present: Set[str], body: Mapping[str, Any], path: str
) -> tuple[str, ...]:
    ignored = present - model.model_fields.keys()
    # In the body's order, unless the body is so large that iterating over it takes long.
    names = [key for key in body if key in ignored] if len(body) < 1_000 else sorted(ignored)
    return tuple(
        f"{path}{key} is not supported and was ignored"
        for key in names
        if not has_no_effect(key, body[key])
    )


def validate_model(model: type[M], body: Mapping[str, Any], path: str = "") -> M:
    """Validate `body` with a pydantic model whose field descriptions state the allowed values.

    Raises:
        InvalidRequest: one sentence about the first invalid field.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        value = body.get(name)
        raise InvalidRequest(
            f"{path}{name} must be {_describe_allowed(model, name)}, got {describe_value(value)}",
            f"{path}{name}",
        ) from None


def _is_token_id(key: str) -> bool:
    number = parse_digits(key, max_digits=len(str(MAX_TOKEN_ID)))
    return number is not None and number <= MAX_TOKEN_ID


def _describe_allowed(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].description or "something else"


def _value_or(value: T | None, default: T) -> T:
    return default if value is None else value

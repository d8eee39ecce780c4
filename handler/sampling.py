"""Sampling parameters from the outside: ranges, the words for them, and what is ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine import SamplingParams
from handler.errors import InvalidRequest
from handler.json_size import exceeds
from handler.parameter_names import IGNORED, asks_for_nothing
from handler.parse_cache import ParseCache

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_INT32 = 2**32 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_DRAFTED = 64
MAX_BIASED_TOKENS = 10_000
# Of one prompt, and of all prompts of a request together.
MAX_TOKEN_IDS = 1_000_000
# Longer arrays are wrong for every parameter, and are refused without a look at what is in them.
_MAX_LISTED = 1_000
_MAX_SHOWN = 60

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
_Bias = Annotated[float, Field(ge=-100, le=100)]


def as_integer(value: Any) -> Any:
    """Return 16.0 as 16, in an array as well; everything else unchanged (R66).

    JSON has one kind of number, and some clients write every number with a decimal point. A float
    of 2**53 or more does not tell which whole number was written.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list) and len(value) <= MAX_TOKEN_IDS:
        return [as_integer(each) if isinstance(each, float) else each for each in value]
    return value


def read_token_ids(value: Any) -> tuple[int, ...] | None:
    """Return an array of token ids; None if `value` is anything else, or too long."""
    if not isinstance(value, list) or len(value) > MAX_TOKEN_IDS:
        return None
    ids = tuple(as_integer(value))
    return ids if all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in ids) else None


def as_integer_parameter(value: Any) -> Any:
    """Return a parameter as `as_whole` does; an array that is too long for any is left alone."""
    is_long = isinstance(value, list) and len(value) > _MAX_LISTED
    return value if is_long else as_integer(value)


def check_token_count(prompts: Any, name: str) -> None:
    """Refuse prompts with too many token ids in all, by their lengths alone.

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


class SamplingInput(BaseModel):
    """The parameters that every dialect shares (R8-R12); null is unset.

    Strict: "0.5" and true are not numbers. Each description completes the sentence "… must be …"
    of the error that names the field.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    # Of every field: those that take any number take a whole one too.
    _whole = field_validator("*", mode="before")(as_integer_parameter)

    max_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description=f"a whole number from 1 to {MAX_INT32}"
    )
    # Chat's newer name for max_tokens; where both are given it is the one that counts.
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description=f"a whole number from 1 to {MAX_INT32}"
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
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None = Field(
        None,
        description=f"a non-empty string or an array of up to {MAX_STOPS} of them, "
        f"each of up to {MAX_STOP_CHARS} characters",
    )
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=MAX_STOPS)] | None = Field(
        None, description=f"an array of up to {MAX_STOPS} token ids"
    )
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    ignore_eos: bool | None = Field(None, description="true or false")
    logit_bias: dict[str, _Bias] | None = Field(
        None,
        description=f"an object of up to {MAX_BIASED_TOKENS} token ids and numbers from -100 to "
        "100",
    )
    # Of a draft model that guesses ahead (R17).
    num_assistant_tokens: int | None = Field(
        None, ge=1, le=MAX_DRAFTED, description=f"a whole number from 1 to {MAX_DRAFTED}"
    )
    assistant_confidence_threshold: float | None = Field(
        None, ge=0, le=1, description="a number from 0 to 1"
    )
    prompt_cache: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        description="a name of up to 64 letters, digits, - and _",
    )
    n: int | None = Field(None, ge=1, le=1, description="1")
    stream: bool | None = Field(None, description="true or false")


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a dialect assumes where a request says nothing."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


# R49.
JOB_DEFAULTS = SamplingDefaults(max_tokens=150, temperature=0.7, top_p=0.9, top_k=50)

_MATTERS = IGNORED | SamplingInput.model_fields.keys()
_Sampling = tuple[SamplingParams, bool, tuple[str, ...]]
_KNOWN: ParseCache[_Sampling] = ParseCache()


def read_sampling(
    body: Mapping[str, Any], defaults: SamplingDefaults, path: str = ""
) -> tuple[SamplingParams, bool, tuple[str, ...]]:
    """Return the parameters, whether to stream, and a warning for each one that is ignored.

    `path` is put before a field's name in messages, e.g. "input.sampling_params.".

    Raises:
        InvalidRequest: naming the field, the value and what is allowed.
    """

    check_bias_count(body, path)

    def read() -> _Sampling:
        given = validate_model(SamplingInput, body, path)
        sampling, warnings = build_sampling(given, body, defaults, path)
        return sampling, bool(given.stream), warnings

    return _KNOWN.get(body, _MATTERS, read, (defaults, path))


def check_bias_count(body: Mapping[str, Any], path: str = "") -> None:
    """Refuse too many biased tokens before any of them is read. Raises InvalidRequest."""
    bias = body.get("logit_bias")
    if isinstance(bias, dict) and len(bias) > MAX_BIASED_TOKENS:
        raise InvalidRequest(
            f"{path}logit_bias must have at most {MAX_BIASED_TOKENS} token ids, got {len(bias)}",
            f"{path}logit_bias",
        )


def build_sampling(
    given: SamplingInput, body: Mapping[str, Any], defaults: SamplingDefaults, path: str = ""
) -> tuple[SamplingParams, tuple[str, ...]]:
    """Return the parameters of a body that was read, and a warning for each one that is ignored.

    Raises:
        InvalidRequest: `logit_bias` has a key that is no token id.
    """
    stop = given.stop
    sampling = SamplingParams(
        max_tokens=_or(given.max_completion_tokens, _or(given.max_tokens, defaults.max_tokens)),
        temperature=_or(given.temperature, defaults.temperature),
        top_p=_or(given.top_p, defaults.top_p),
        top_k=_or(given.top_k, defaults.top_k) or -1,
        min_p=_or(given.min_p, 0.0),
        repetition_penalty=_or(given.repetition_penalty, 1.0),
        frequency_penalty=_or(given.frequency_penalty, 0.0),
        presence_penalty=_or(given.presence_penalty, 0.0),
        seed=given.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(given.stop_token_ids or ()),
        include_stop_str_in_output=bool(given.include_stop_str_in_output),
        ignore_eos=bool(given.ignore_eos),
        logit_bias=_bias(given.logit_bias, path) if given.logit_bias else {},
        draft_tokens=given.num_assistant_tokens,
        draft_threshold=given.assistant_confidence_threshold,
        prompt_cache=given.prompt_cache,
    )
    # Most bodies have none of them, and the look at each of these costs more than all of the above.
    suspects = IGNORED & body.keys()
    return sampling, _warnings(type(given), suspects, body, path) if suspects else ()


def _bias(given: Mapping[str, float], path: str) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not _is_token_id(key):
            raise InvalidRequest(
                f"{path}logit_bias must be {_words(SamplingInput, 'logit_bias')}, "
                f"got the key {describe_value(key)}",
                f"{path}logit_bias",
            )
        bias[int(key)] = value
    return bias


def _warnings(
    model: type[SamplingInput], suspects: Set[str], body: Mapping[str, Any], path: str
) -> tuple[str, ...]:
    ignored = suspects - model.model_fields.keys()
    # In the body's order, unless most of the body is something else.
    names = [key for key in body if key in ignored] if len(body) < 1_000 else sorted(ignored)
    return tuple(
        f"{path}{key} is not supported and was ignored"
        for key in names
        if not asks_for_nothing(key, body[key])
    )


def validate_model(model: type[M], body: Mapping[str, Any], path: str = "") -> M:
    """Return `body` as a boundary model whose fields' descriptions say what is allowed.

    Raises:
        InvalidRequest: one sentence about the first field that is wrong.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        value = body.get(name)
        raise InvalidRequest(
            f"{path}{name} must be {_words(model, name)}, got {describe_value(value)}",
            f"{path}{name}",
        ) from None


def describe_value(value: Any) -> str:
    """Return a value as short JSON, for error messages; always text that UTF-8 can carry."""
    if isinstance(value, list | dict) and exceeds(value, _MAX_SHOWN):
        return _counted(value)
    # Of a long one only the beginning is shown.
    start = value[: _MAX_SHOWN + 1] if isinstance(value, str) else value
    try:
        text = orjson.dumps(start).decode()
    except (TypeError, ValueError):
        text = _escaped(start)
    if isinstance(value, float) and text == "null":
        text = str(value)
    if isinstance(value, list | dict) and len(text) > _MAX_SHOWN:
        return _counted(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _counted(value: list[Any] | dict[str, Any]) -> str:
    return f"{'an array' if isinstance(value, list) else 'an object'} of {len(value)}"


def _escaped(value: Any) -> str:
    """Return what orjson refuses (half a surrogate pair, a huge number) as JSON in ASCII."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return f"something of type {type(value).__name__} that is too large to show"


def _is_token_id(key: str) -> bool:
    digits = key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID))
    return digits and int(key) <= MAX_TOKEN_ID


def _words(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].description or "something else"


def _or(value: T | None, default: T) -> T:
    return default if value is None else value

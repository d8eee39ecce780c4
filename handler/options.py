"""What an answer is to be checked for beyond the rules: a request's `validation`, and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.schema_cost import count_repetitions
from handler.errors import InvalidRequest
from handler.json_size import exceeds
from handler.sampling import describe_value
from handler.unknown_keys import KnownKeys
from validation import Options
from validation.options import MissingPart
from validation.options.language import LanguageCheck
from validation.verdict import AnswerCheck, Blocker, Redactor

T = TypeVar("T")
P = TypeVar("P")

MAX_SCHEMA_CHARS = 100_000
# Of all patterns of one schema: compiling them holds the interpreter's lock.
MAX_REPETITIONS = 2_000

PiiKind = Literal["card", "iban", "email", "phone", "key"]
PII_KINDS: tuple[PiiKind, ...] = get_args(PiiKind)

_Term = Annotated[str, Field(min_length=1, max_length=200)]
_Terms = Annotated[list[_Term], Field(max_length=1000)]
_KINDS_SAID = ", ".join(PII_KINDS)


class OptionsInput(BaseModel):
    """The fields of a request's `validation`; null is unset.

    Strict; each description completes the sentence "… must be …" of the error naming the field.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    json_schema: dict[str, Any] | None = Field(None, description="a JSON Schema, as an object")
    redact_pii: bool | list[PiiKind] | None = Field(
        None, description=f"true, false or an array of {_KINDS_SAID}"
    )
    language: str | None = Field(None, description="an ISO 639-1 code such as en")
    blocked_intents: _Terms | None = Field(None, description="an array of intents")
    blocked_terms: _Terms | None = Field(
        None, description="an array of up to 1000 words or phrases of up to 200 characters"
    )
    regenerate: bool | Literal[0, 1] | None = Field(None, description="true or false")


class OptionsReader:
    """Reads what requests ask for and joins it with what the settings ask for.

    A request may ask for another schema, another language and for more to be redacted or blocked;
    it cannot lift what the settings redact or block. Compiled schemas are kept for the next request
    with the same one. A package that is missing becomes a warning: the answer is still given.

    Owned by one event loop; `Options` it returns may be used by any thread.
    """

    def __init__(self, settings: OptionsInput, intents: tuple[str, ...] = ()) -> None:
        """Build what the settings ask for. Raises InvalidRequest naming the setting."""
        self._intents = intents
        self._settings = settings
        self.defaults, self.warnings = self._join(OptionsInput(), "")

    def read(self, given: Any, path: str = "validation") -> tuple[Options, tuple[str, ...]]:
        """Return the options for a request, and a warning for each that cannot be honoured.

        Raises:
            InvalidRequest: naming the field, its value and what is allowed.
        """
        if given is None:
            return self.defaults, self.warnings
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"{path} must be an object, got {describe_value(given)}", path)
        options, warnings = self._join(_checked(given, path), f"{path}.")
        return options, (*_keys(path).warnings(given), *warnings)

    def _join(self, asked: OptionsInput, path: str) -> tuple[Options, tuple[str, ...]]:
        base = self._settings
        warnings: list[str] = []

        def made(name: str, value: T | None, build: Callable[[T], P]) -> P | None:
            if value is None:
                return None
            where = name if getattr(asked, name) is None else f"{path}{name}"
            try:
                return build(value)
            except ValueError as error:
                raise InvalidRequest(f"{where}: {error}", where) from None
            except MissingPart as missing:
                warnings.append(f"{where} was not looked at. {missing}")
                return None

        checks: dict[str, AnswerCheck | None] = {
            "json_schema": made(
                "json_schema", _either(asked.json_schema, base.json_schema), _schema
            ),
            "language": made("language", _either(asked.language, base.language), LanguageCheck),
        }
        blockers = (
            made("blocked_terms", _terms(base.blocked_terms, asked.blocked_terms), _of_terms),
            made("blocked_intents", self._blocked_intents(asked, path), _of_intents),
        )
        options = Options(
            checks={name: check for name, check in checks.items() if check is not None},
            redactor=made("redact_pii", _kinds(base.redact_pii, asked.redact_pii), _redactor),
            blockers=tuple(blocker for blocker in blockers if blocker is not None),
            regenerate=bool(_either(asked.regenerate, base.regenerate)),
        )
        return options, tuple(warnings)

    def _blocked_intents(self, asked: OptionsInput, path: str) -> tuple[str, ...] | None:
        intents = _terms(self._settings.blocked_intents, asked.blocked_intents)
        for intent in intents or ():
            if intent not in self._intents:
                raise InvalidRequest(
                    f"{path}blocked_intents: there is no intent {describe_value(intent)}, "
                    f"there are: {', '.join(self._intents)}",
                    f"{path}blocked_intents",
                )
        return intents


def _checked(given: Mapping[str, Any], path: str) -> OptionsInput:
    fields = OptionsInput.model_fields
    try:
        return OptionsInput.model_validate(dict(given))
    except ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise InvalidRequest(
            f"{path}.{name} must be {fields[name].description}, got {describe_value(given[name])}",
            f"{path}.{name}",
        ) from None


@lru_cache(maxsize=2)
def _keys(path: str) -> KnownKeys:
    # Every unknown key is named: a check that was asked for and does not happen must be noticed.
    return KnownKeys(f"{path}.", OptionsInput.model_fields, names_all=True)


def _either(asked: T | None, base: T | None) -> T | None:
    return base if asked is None else asked


def _terms(base: list[str] | None, asked: list[str] | None) -> tuple[str, ...] | None:
    return (*(base or ()), *(asked or ())) or None


def _kinds(*asked: bool | list[PiiKind] | None) -> frozenset[str] | None:
    kinds: set[str] = set()
    for each in asked:
        kinds.update(each if isinstance(each, list) else PII_KINDS if each else ())
    return frozenset(kinds) or None


# What these make is imported when it is asked for: few do, and it takes as long to compile as all
# the rest of the pipeline.


def _schema(schema: dict[str, Any]) -> AnswerCheck:
    if exceeds(schema, MAX_SCHEMA_CHARS):
        raise ValueError(f"The JSON schema must have at most {MAX_SCHEMA_CHARS} characters.")
    if (count := sum(map(count_repetitions, _patterns(schema)))) > MAX_REPETITIONS:
        raise ValueError(
            f"The patterns of the JSON schema must repeat their parts at most {MAX_REPETITIONS} "
            f"times in all, nested counts multiplied, and they do so {count} times."
        )
    try:
        return _compiled_schema(orjson.dumps(schema))
    except TypeError as error:
        raise ValueError(f"The JSON schema is not JSON: {error}.") from None


def _patterns(schema: Any) -> Iterator[str]:
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(pattern := part.get("pattern"), str):
                yield pattern
            if isinstance(named := part.get("patternProperties"), dict):
                yield from named
            pending += part.values()
        elif isinstance(part, list):
            pending += part


@lru_cache(maxsize=32)
def _compiled_schema(schema: bytes) -> AnswerCheck:
    from validation.options.schema import SchemaCheck

    return SchemaCheck(orjson.loads(schema))


@lru_cache(maxsize=32)
def _redactor(kinds: frozenset[str]) -> Redactor:
    from validation.options.pii import PiiRedactor

    return PiiRedactor(kinds)


# A thousand long terms take half a second to read, and up to 400 MB once they were looked for.
@lru_cache(maxsize=1)
def _of_terms(terms: tuple[str, ...]) -> Blocker:
    return _blocklist(terms=terms)


def _of_intents(intents: tuple[str, ...]) -> Blocker:
    return _blocklist(intents=intents)


def _blocklist(**blocked: tuple[str, ...]) -> Blocker:
    from validation.options.blocked import Blocklist

    return Blocklist(**blocked)


NO_DEFAULTS = OptionsReader(OptionsInput())

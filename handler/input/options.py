"""Read the checks beyond the rules: a request's `validation`, joined with the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.json_size import exceeds
from common.value_description import describe_value
from engine.schema.grammar_cost import count_repetitions
from handler.errors import InvalidRequest
from handler.input.unknown_keys import KnownKeys
from validation import Options
from validation.options import MissingPart
from validation.options.calls import CallCheck
from validation.options.language import LanguageCheck
from validation.verdict import AnswerCheck, Blocker, Redactor, Repairer

T = TypeVar("T")
P = TypeVar("P")

MAX_SCHEMA_CHARS = 100_000
# The maximum for all patterns of one schema: compiling them holds the interpreter's lock.
MAX_REPETITIONS = 2_000

PiiKind = Literal["card", "iban", "email", "phone", "key", "ssn"]
PII_KINDS: tuple[PiiKind, ...] = get_args(PiiKind)

_Term = Annotated[str, Field(min_length=1, max_length=200)]
_Terms = Annotated[list[_Term], Field(max_length=1000)]
_PII_KINDS_TEXT = ", ".join(PII_KINDS)


class OptionsInput(BaseModel):
    """The fields of a request's `validation`; null means unset.

    Strict; each description completes the sentence "… must be …" of the error naming the field.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    json_schema: dict[str, Any] | None = Field(None, description="a JSON Schema, as an object")
    redact_pii: bool | list[PiiKind] | None = Field(
        None, description=f"true, false or an array of {_PII_KINDS_TEXT}"
    )
    language: str | None = Field(None, description="an ISO 639-1 code such as en")
    blocked_intents: _Terms | None = Field(None, description="an array of intents")
    blocked_terms: _Terms | None = Field(
        None, description="an array of up to 1000 words or phrases of up to 200 characters"
    )
    repair_json: bool | None = Field(None, description="true or false")
    regenerate: bool | Literal[0, 1] | None = Field(None, description="true or false")


class OptionsReader:
    """Reads the `validation` of requests and joins it with the settings.

    A request may set another schema or language, and may add redactions and blocked terms or
    intents. It cannot remove those of the settings. Compiled schemas are cached. A missing Python
    package causes a warning; the request is still answered.

    Owned by one event loop; the returned `Options` may be used by any thread.
    """

    def __init__(self, settings: OptionsInput, intents: tuple[str, ...] = ()) -> None:
        """Build the options of the settings. Raises InvalidRequest naming the setting."""
        self._intents = intents
        self._settings = settings
        self.defaults, self.warnings = self._join(OptionsInput(), "")

    def read(self, raw_options: Any, path: str = "validation") -> tuple[Options, tuple[str, ...]]:
        """Return the options of a request, and a warning for each one that has no effect.

        Raises:
            InvalidRequest: the message has the field, its value and the allowed values.
        """
        if raw_options is None:
            return self.defaults, self.warnings
        if not isinstance(raw_options, Mapping):
            raise InvalidRequest(
                f"{path} must be an object, got {describe_value(raw_options)}", path
            )
        options, warnings = self._join(_validate(raw_options, path), f"{path}.")
        return options, (*_known_keys(path).warnings(raw_options), *warnings)

    def _join(self, requested: OptionsInput, path: str) -> tuple[Options, tuple[str, ...]]:
        base = self._settings
        warnings: list[str] = []

        def build_option(name: str, value: T | None, build: Callable[[T], P]) -> P | None:
            if value is None:
                return None
            field = name if getattr(requested, name) is None else f"{path}{name}"
            try:
                return build(value)
            except ValueError as error:
                raise InvalidRequest(f"{field}: {error}", field) from None
            except MissingPart as missing:
                warnings.append(f"{field} was not checked. {missing}")
                return None

        schema = _value_or_default(requested.json_schema, base.json_schema)
        repairs_json = bool(_value_or_default(requested.repair_json, base.repair_json))
        if repairs_json and schema is None:
            schema = {}
        checks: dict[str, AnswerCheck | None] = {
            "json_schema": build_option("json_schema", schema, _build_schema_check),
            "language": build_option(
                "language", _value_or_default(requested.language, base.language), LanguageCheck
            ),
        }
        blockers = (
            build_option(
                "blocked_terms",
                _join_terms(base.blocked_terms, requested.blocked_terms),
                _build_term_blocker,
            ),
            build_option(
                "blocked_intents",
                self._join_blocked_intents(requested, path),
                _build_intent_blocker,
            ),
        )
        options = Options(
            checks={name: check for name, check in checks.items() if check is not None},
            redactor=build_option(
                "redact_pii",
                _join_pii_kinds(base.redact_pii, requested.redact_pii),
                _build_redactor,
            ),
            repairer=build_option(
                "repair_json", True if repairs_json else None, lambda _: _build_repairer()
            ),
            blockers=tuple(blocker for blocker in blockers if blocker is not None),
            regenerate=bool(_value_or_default(requested.regenerate, base.regenerate)),
        )
        return options, tuple(warnings)

    def _join_blocked_intents(self, requested: OptionsInput, path: str) -> tuple[str, ...] | None:
        intents = _join_terms(self._settings.blocked_intents, requested.blocked_intents)
        for intent in intents or ():
            if intent not in self._intents:
                raise InvalidRequest(
                    f"{path}blocked_intents: there is no intent {describe_value(intent)}, "
                    f"there are: {', '.join(self._intents)}",
                    f"{path}blocked_intents",
                )
        return intents


def add_schema_check(
    options: Options, schema: Mapping[str, Any], param: str
) -> tuple[Options, tuple[str, ...]]:
    """Return options that check answers against a schema too, and a warning if that is impossible.

    An answer that does not match is generated once more. `param` is the client's field.

    Raises:
        InvalidRequest: the schema cannot be used.
    """
    options = replace(options, regenerate=True)
    try:
        check = _build_schema_check(schema)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param) from None
    except MissingPart as missing:
        return options, (f"{param} was not checked. {missing}",)
    return replace(options, checks={**options.checks, "json_schema": check}), ()


def add_call_check(
    options: Options, calls: Mapping[str, Mapping[str, Any]], param: str
) -> tuple[Options, tuple[str, ...]]:
    """Return options that check the arguments of calls, as `add_schema_check` does for answers.

    `calls` are the schemas of the arguments by function. Raises InvalidRequest.
    """
    try:
        checks = {name: _build_schema_check(schema) for name, schema in calls.items() if schema}
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param) from None
    except MissingPart as missing:
        return options, (f"{param} was not checked. {missing}",)
    return replace(options, call_check=CallCheck(checks), regenerate=True), ()


def _validate(raw_options: Mapping[str, Any], path: str) -> OptionsInput:
    fields = OptionsInput.model_fields
    try:
        return OptionsInput.model_validate(dict(raw_options))
    except ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise InvalidRequest(
            f"{path}.{name} must be {fields[name].description}, "
            f"got {describe_value(raw_options[name])}",
            f"{path}.{name}",
        ) from None


@lru_cache(maxsize=2)
def _known_keys(path: str) -> KnownKeys:
    # Every unknown key causes a warning: the client must notice that a requested check is not done.
    return KnownKeys(f"{path}.", OptionsInput.model_fields, warns_about_all=True)


def _value_or_default(requested: T | None, default: T | None) -> T | None:
    return default if requested is None else requested


def _join_terms(default: list[str] | None, requested: list[str] | None) -> tuple[str, ...] | None:
    return (*(default or ()), *(requested or ())) or None


def _join_pii_kinds(*settings: bool | list[PiiKind] | None) -> frozenset[str] | None:
    kinds: set[str] = set()
    for each in settings:
        kinds.update(each if isinstance(each, list) else PII_KINDS if each else ())
    return frozenset(kinds) or None


# The following functions import their modules on first use: few requests need them, and the imports
# take as long as those of the rest of the pipeline.


def _build_schema_check(schema: Mapping[str, Any]) -> AnswerCheck:
    if exceeds(schema, MAX_SCHEMA_CHARS):
        raise ValueError(f"The JSON schema must have at most {MAX_SCHEMA_CHARS} characters.")
    if (count := sum(map(count_repetitions, _find_patterns(schema)))) > MAX_REPETITIONS:
        raise ValueError(
            f"The patterns of the JSON schema must repeat their parts at most {MAX_REPETITIONS} "
            f"times in all, nested counts multiplied, and they do so {count} times."
        )
    try:
        return _compile_schema(orjson.dumps(schema))
    except TypeError as error:
        raise ValueError(f"The JSON schema is not JSON: {error}.") from None


def _find_patterns(schema: Any) -> Iterator[str]:
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
def _compile_schema(schema: bytes) -> AnswerCheck:
    from validation.options.schema import SchemaCheck

    return SchemaCheck(orjson.loads(schema))


@lru_cache(maxsize=32)
def _build_redactor(kinds: frozenset[str]) -> Redactor:
    from validation.options.pii import PiiRedactor

    return PiiRedactor(kinds)


@lru_cache(maxsize=1)
def _build_repairer() -> Repairer:
    from validation.options.json_repair import JsonRepairer

    return JsonRepairer()


# A thousand long terms take half a second to compile, and up to 400 MB after the first search.
@lru_cache(maxsize=1)
def _build_term_blocker(terms: tuple[str, ...]) -> Blocker:
    return _build_blocklist(terms=terms)


def _build_intent_blocker(intents: tuple[str, ...]) -> Blocker:
    return _build_blocklist(intents=intents)


def _build_blocklist(**blocked: tuple[str, ...]) -> Blocker:
    from validation.options.blocked import Blocklist

    return Blocklist(**blocked)


NO_DEFAULTS = OptionsReader(OptionsInput())

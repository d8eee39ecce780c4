"""From settings to what answers: validator, pipeline and the two doors to it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import orjson
from pydantic import ValidationError

from engine import Engine
from handler.errors import InvalidRequest
from handler.job import JobHandler
from handler.openai.service import OpenAIService
from handler.options import PII_KINDS, OptionsInput, OptionsReader
from handler.pipeline import Pipeline
from handler.sampling import shown
from handler.settings import Settings
from validation.options.language import LanguageCheck
from validation.rules import DEFAULT_RULES, RulesError
from validation.v3 import V3

logger = logging.getLogger(__name__)


class SettingError(Exception):
    """What a setting names cannot be used; the message begins with its name."""


@dataclass(frozen=True, slots=True)
class Checking:
    """The validator and what is looked at beyond its rules; built before an engine is."""

    validator: V3
    options: OptionsReader


@dataclass(frozen=True, slots=True)
class Doors:
    """What entry points hand requests to; both share one pipeline."""

    jobs: JobHandler
    openai: OpenAIService


def build_checking(settings: Settings) -> Checking:
    """Load rules, schema and models that the settings name. Raises SettingError."""
    try:
        validator = V3.from_file(settings.validation_rules or DEFAULT_RULES)
    except RulesError as error:
        message = str(error).removeprefix("VALIDATION_RULES: ")
        raise SettingError(f"VALIDATION_RULES: {message}") from None
    asked = {
        "json_schema": _schema(settings.validation_schema),
        "redact_pii": _kinds(settings.redact_pii),
        "language": settings.validation_language,
        "blocked_intents": _listed(settings.blocked_intents),
        "blocked_terms": _listed(settings.blocked_terms),
        "regenerate": settings.regenerate,
    }
    try:
        options = OptionsReader(OptionsInput.model_validate(asked), validator.intents)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        allowed = OptionsInput.model_fields[name].description
        got = shown(first["input"])
        raise SettingError(f"{_SETTINGS[name]} must be {allowed}, got {got}") from None
    except InvalidRequest as error:
        name = str(error.param)
        message = error.message.removeprefix(f"{name}: ")
        raise SettingError(f"{_SETTINGS[name]}: {message}") from None
    for warning in options.warnings:
        logger.warning("%s", warning)
    if settings.draft_model_path is not None and settings.backend != "llamacpp":
        logger.warning(
            "DRAFT_MODEL_PATH is for the llamacpp engine, the %s engine ignores it",
            settings.backend,
        )
    for check in options.defaults.checks.values():
        if isinstance(check, LanguageCheck):
            check.preload()
    return Checking(validator, options)


def open_doors(
    settings: Settings,
    engine: Engine,
    checking: Checking,
    interval_s: float = 0.05,
    *,
    stream_several: bool = False,
) -> Doors:
    """Return what answers jobs and OpenAI calls with an engine."""
    pipeline = Pipeline(engine, settings.served_model, checking.validator)
    openai = OpenAIService(
        pipeline,
        checking.options,
        max_tokens=settings.default_max_tokens,
        stream_several=stream_several,
    )
    jobs = JobHandler(
        pipeline,
        checking.options,
        validation=settings.enable_validation,
        interval_s=interval_s,
        openai=openai,
    )
    return Doors(jobs, openai)


def leave(error: SettingError) -> NoReturn:
    """End the process with what is wrong with a setting, as `read_settings` does."""
    sys.stderr.write(f"{error}\n")
    raise SystemExit(2)


_SETTINGS = {
    "json_schema": "VALIDATION_SCHEMA",
    "redact_pii": "REDACT_PII",
    "language": "VALIDATION_LANGUAGE",
    "blocked_intents": "BLOCKED_INTENTS",
    "blocked_terms": "BLOCKED_TERMS",
    "regenerate": "REGENERATE",
}


def _schema(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        schema = orjson.loads(path.read_bytes())
    except OSError as error:
        raise SettingError(f"VALIDATION_SCHEMA: {path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise SettingError(f"VALIDATION_SCHEMA: {path} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        allowed = OptionsInput.model_fields["json_schema"].description
        raise SettingError(f"VALIDATION_SCHEMA: {path} must be {allowed}, got {shown(schema)}")
    return schema


def _kinds(written: str) -> bool | list[str]:
    if written.lower() in {"on", "true", "1", "yes"}:
        return True
    if written.lower() in {"", "off", "false", "0", "no"}:
        return False
    if unknown := set(_listed(written)) - set(PII_KINDS):
        raise SettingError(
            f"REDACT_PII must be on, off or a list of {', '.join(PII_KINDS)}, got {min(unknown)!r}"
        )
    return _listed(written)


def _listed(written: str) -> list[str]:
    return [each.strip() for each in written.split(",") if each.strip()]

"""Build the validator, the pipelines and the services from settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from common.setting_error import SettingError
from common.value_description import describe_value
from engine import AnyEngine, Engine, engines_by_model
from handler.apis.calls import ApiCalls, build_calls
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.service import OpenAIService
from handler.delivery.bucket import Bucket, check_name, check_secret, check_url
from handler.delivery.limits import PayloadLimits
from handler.delivery.outbound_targets import OutboundPolicy
from handler.delivery.results import ResultUploader
from handler.errors import InvalidRequest
from handler.generation.active_generation import ActiveGeneration
from handler.input.options import PII_KINDS, OptionsInput, OptionsReader
from handler.job.job_handler import JobHandler
from handler.models.model_file import ModelFiles
from handler.models.model_name_map import CLAUDE_TO_DEFAULT, ModelNameMap
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline
from handler.settings.shared_settings import Settings
from handler.settings.unused_settings import (
    find_ineffective_settings,
    find_misspelled_settings,
    find_removed_settings,
)
from handler.settings.worker_settings import ResultSettings
from validation import Validator
from validation.options.language import LanguageCheck
from validation.rules import DEFAULT_RULES, RulesError
from validation.rules_validator import RulesValidator

logger = logging.getLogger(__name__)

_ANY_TARGET = OutboundPolicy()


@dataclass(frozen=True, slots=True)
class ValidationSetup:
    """The validator and the reader of validation options; built before the engine."""

    validator: RulesValidator
    options: OptionsReader


@dataclass(frozen=True, slots=True)
class Services:
    """The services that entry points pass requests to; they share one pipeline per model."""

    jobs: JobHandler
    calls: ApiCalls
    models: ModelRegistry
    # Returns the pipeline of an engine by the names of its model.
    build_pipeline: Callable[[Engine, Sequence[str]], Pipeline]
    files: ModelFiles

    @property
    def openai(self) -> OpenAIService:
        """The service of OpenAI's API."""
        return self.calls.service


def warn_about_variables(settings: Settings) -> None:
    """Log a warning for each environment variable that is a removed or a misspelled setting."""
    for warning in (
        *find_removed_settings(os.environ),
        *find_misspelled_settings(settings, os.environ),
    ):
        logger.warning("%s", warning)


def build_validation(settings: Settings) -> ValidationSetup:
    """Load the rules, the schema and the classifiers of the settings; log warnings about settings.

    Raises SettingError.
    """
    try:
        validator = RulesValidator.from_file(settings.validation_rules or DEFAULT_RULES)
    except RulesError as error:
        message = str(error).removeprefix("VALIDATION_RULES: ")
        raise SettingError(f"VALIDATION_RULES: {message}") from None
    option_values = {
        "json_schema": _load_schema(settings.validation_schema),
        "redact_pii": _parse_pii_kinds(settings.redact_pii),
        "language": settings.validation_language,
        "blocked_intents": _split_list(settings.blocked_intents),
        "blocked_terms": _split_list(settings.blocked_terms),
        "regenerate": settings.regenerate,
    }
    try:
        options = OptionsReader(OptionsInput.model_validate(option_values), validator.intents)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        allowed = OptionsInput.model_fields[name].description
        value = describe_value(first["input"])
        raise SettingError(f"{_SETTING_NAMES[name]} must be {allowed}, got {value}") from None
    except InvalidRequest as error:
        name = str(error.param)
        message = error.message.removeprefix(f"{name}: ")
        raise SettingError(f"{_SETTING_NAMES[name]}: {message}") from None
    for warning in options.warnings:
        logger.warning("%s", warning)
    warn_about_variables(settings)
    for warning in find_ineffective_settings(settings):
        logger.warning("%s", warning)
    for check in options.defaults.checks.values():
        if isinstance(check, LanguageCheck):
            check.preload()
    return ValidationSetup(validator, options)


def build_result_uploader(
    settings: ResultSettings,
    limits: PayloadLimits | None = None,
    targets: OutboundPolicy = _ANY_TARGET,
) -> ResultUploader:
    """Return the uploader of results that exceed `limits`. Raises SettingError."""
    endpoint, name = settings.bucket_endpoint_url, settings.bucket_name
    key, hidden_secret = settings.bucket_access_key_id, settings.bucket_secret_access_key
    secret = None if hidden_secret is None else hidden_secret.get_secret_value()
    max_mb = settings.result_max_mb
    if (key is None) is not (secret is None):
        missing = "ACCESS_KEY_ID" if key is None else "SECRET_ACCESS_KEY"
        raise SettingError(f"BUCKET_{missing} must be set as well, or neither of the two")
    if endpoint is None and name is None:
        for variable, value in (("BUCKET_ACCESS_KEY_ID", key), ("RESULT_MAX_MB", max_mb)):
            if value is not None:
                raise SettingError(f"{variable} needs BUCKET_ENDPOINT_URL or BUCKET_NAME")
        return ResultUploader(limits=limits, targets=targets)
    try:
        bucket = Bucket(
            name=_check_optional(check_name, name, "BUCKET_NAME") or "",
            endpoint_url=_check_optional(check_url, endpoint, "BUCKET_ENDPOINT_URL"),
            access_id=_check_optional(check_secret, key, "BUCKET_ACCESS_KEY_ID"),
            access_secret=_check_optional(check_secret, secret, "BUCKET_SECRET_ACCESS_KEY"),
        )
    except InvalidRequest as error:
        raise SettingError(error.message) from None
    max_bytes = None if max_mb is None else int(max_mb * 1e6)
    return ResultUploader(bucket, max_bytes, limits=limits, targets=targets)


def build_services(
    settings: Settings,
    engine: AnyEngine,
    validation: ValidationSetup,
    interval_s: float = 0.05,
    *,
    results: ResultUploader | None = None,
    validator: Validator | None = None,
    on_open: Callable[[ActiveGeneration], object] = lambda generation: None,
    names: ModelNameMap = CLAUDE_TO_DEFAULT,
) -> Services:
    """Return the services that answer jobs and OpenAI calls with an engine.

    `validator` replaces the one in `validation`, for example with one that counts verdicts.
    `on_open` is called with each generation that has started. `names` chooses the model for names
    that no model has.
    """
    validator = validator or validation.validator
    adapters = settings.adapters_by_model

    def build_pipeline(engine: Engine, names: Sequence[str]) -> Pipeline:
        return Pipeline(
            engine,
            names[0],
            validator,
            adapters.get(names[0], ()),
            on_open,
            tuple(names[1:]),
            stop_in_reasoning=settings.stop_in_reasoning,
        )

    models = ModelRegistry(
        *(
            build_pipeline(each, (name, *settings.aliases.get(name, ())))
            for name, each in engines_by_model(engine, settings.served_model).items()
        )
    )
    files = ModelFiles(settings.model_sources)
    openai = OpenAIService(
        models,
        CallDefaults(
            max_tokens=settings.default_max_tokens,
            tool_form=None if settings.tool_parser == "auto" else settings.tool_parser,
            options=validation.options,
        ),
        files=files,
    )
    calls = build_calls(openai, models, names, files)
    jobs = JobHandler(
        models,
        validation.options,
        validation=settings.enable_validation,
        chat_template=settings.apply_chat_template,
        interval_s=interval_s,
        calls=calls,
        results=results,
    )
    return Services(jobs, calls, models, build_pipeline, files)


def _check_optional(check: Callable[[str, str], str], value: str | None, name: str) -> str | None:
    return None if value is None else check(value, name)


_SETTING_NAMES = {
    "json_schema": "VALIDATION_SCHEMA",
    "redact_pii": "REDACT_PII",
    "language": "VALIDATION_LANGUAGE",
    "blocked_intents": "BLOCKED_INTENTS",
    "blocked_terms": "BLOCKED_TERMS",
    "regenerate": "REGENERATE",
}


def _load_schema(path: Path | None) -> dict[str, Any] | None:
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
        raise SettingError(
            f"VALIDATION_SCHEMA: {path} must be {allowed}, got {describe_value(schema)}"
        )
    return schema


def _parse_pii_kinds(setting: str) -> bool | list[str]:
    if setting.lower() in {"on", "true", "1", "yes"}:
        return True
    if setting.lower() in {"", "off", "false", "0", "no"}:
        return False
    if unknown := set(_split_list(setting)) - set(PII_KINDS):
        raise SettingError(
            f"REDACT_PII must be on, off or a list of {', '.join(PII_KINDS)}, got {min(unknown)!r}"
        )
    return _split_list(setting)


def _split_list(setting: str) -> list[str]:
    return [each.strip() for each in setting.split(",") if each.strip()]

"""Build services from settings: each setting has an effect, or an error of one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from common.json_object import JsonObject
from common.setting_error import SettingError, exit_on_setting_error
from engine import BackendConfig, Engine
from handler.composition import Services, build_services, build_validation
from handler.input.options import _compile_schema
from handler.settings.shared_settings import Settings
from tests.conftest import SMALL_RULES, EngineFactory, ScriptFactory
from tests.unit.handler.bad_settings import BAD_IDS, BAD_SETTINGS, write_files
from tests.unit.handler.conftest import RecordingGenerate
from validation.options import language

FRENCH = "Pendant l'entretien, vous devriez expliquer votre expérience et poser des questions."


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower() in Settings.model_fields:
            monkeypatch.delenv(name)


class ServicesFactory(Protocol):
    def __call__(self, *pieces: Any, **settings: Any) -> tuple[Services, Engine]: ...


@pytest.fixture
def open_with(script: ScriptFactory, engine_factory: EngineFactory) -> ServicesFactory:
    """Builds services with an engine that has one answer; settings come from the environment."""

    def build(*pieces: Any, **environment: Any) -> tuple[Services, Engine]:
        path = str(script({"pieces": list(pieces)}))
        engine = engine_factory(
            BackendConfig.from_wire("scripted", {"model_path": path}), isolation="thread"
        )
        settings = Settings(**{"model_path": path, "validation_rules": SMALL_RULES, **environment})
        return build_services(settings, engine, build_validation(settings)), engine

    return build


async def run(services: Services, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    """The output of a job."""
    output = await services.jobs.run({"id": "j", "input": {"prompt": prompt, **fields}})
    assert isinstance(output, dict)
    assert "error" not in output, output
    return output


async def call(services: Services, prompt: str = "hi", **body: Any) -> JsonObject:
    """The body of an OpenAI call."""
    parsed = services.openai.parse_call("/v1/completions", {"prompt": prompt, **body})
    return await services.openai.complete(parsed)


def rules(output: dict[str, Any]) -> list[str]:
    return [issue["rule"] for issue in output["validation"]["details"]["issues"]]


# -- settings that take effect --------------------------------------------------------------------


async def test_jobs_and_openai_calls_share_one_engine(open_with: ServicesFactory) -> None:
    services, engine = open_with("All", " well", model_name="tiny")
    assert (await run(services))["choices"][0]["text"] == "All well"
    assert (await call(services))["choices"][0]["text"] == "All well"
    assert (await run(services))["model"] == (await call(services))["model"] == "tiny"
    assert engine.running == 0


async def test_rules_of_a_file(open_with: ServicesFactory) -> None:
    # R48
    services, _ = open_with("Assistant: Sunny.")
    output = await run(services, "The weather for tomorrow?")
    assert output["choices"][0]["text"] == "Sunny."
    assert output["validation"]["intent"] == "weather"
    assert output["validation"]["details"]["removed"][0]["rule"] == "role_label"


async def test_rules_that_are_shipped_are_the_default() -> None:
    assert build_validation(Settings()).validator.detect_intent("hi") == "general"


async def test_schema_of_a_file(open_with: ServicesFactory, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "required": ["city"]}')
    services, _ = open_with('{"town": "Paris"}', validation_schema=path)
    output = await run(services)
    assert output["validation"]["valid"] is False
    assert rules(output) == ["schema_mismatch"]


async def test_language(open_with: ServicesFactory) -> None:
    services, _ = open_with(FRENCH, validation_language="en")
    assert rules(await run(services)) == ["language"]


async def test_model_of_the_language_is_there_before_the_first_answer() -> None:
    language._load_model.cache_clear()
    build_validation(Settings(validation_language="en"))
    assert language._load_model.cache_info().currsize == 1


async def test_language_model_is_not_loaded_without_the_language_check() -> None:
    language._load_model.cache_clear()
    build_validation(Settings())
    assert language._load_model.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("on", "[card], [email]"),
        ("True", "[card], [email]"),
        ("1", "[card], [email]"),
        ("card", "[card], bob@example.com"),
        (" email , card,", "[card], [email]"),
        ("off", "4111 1111 1111 1111, bob@example.com"),
        ("no", "4111 1111 1111 1111, bob@example.com"),
    ],
)
async def test_redaction(open_with: ServicesFactory, written: str, text: str) -> None:
    services, _ = open_with("4111 1111 1111 1111, ", "bob@example.com", redact_pii=written)
    assert (await run(services))["choices"][0]["text"] == text
    assert (await call(services))["choices"][0]["text"] == text


@pytest.mark.parametrize("prompt", ["an attack plan", "a BOMB"])
async def test_blocked_terms(open_with: ServicesFactory, prompt: str) -> None:
    # R56
    services, _ = open_with("yes", blocked_terms="attack plan, bomb,")
    assert (await run(services, prompt))["blocked"] is True
    assert (await call(services, prompt))["choices"][0]["finish_reason"] == "content_filter"
    assert "blocked" not in await run(services, "a plan")


async def test_blocked_intents(open_with: ServicesFactory) -> None:
    # R56
    services, _ = open_with("yes", blocked_intents="weather")
    assert (await run(services, "The weather?"))["blocked"] is True
    assert (await call(services, "The weather?"))["choices"][0]["finish_reason"] == "content_filter"
    assert "blocked" not in await run(services, "The time?")


@pytest.mark.parametrize(("regenerate", "count"), [(True, 2), (False, 1)])
async def test_regenerate(
    open_with: ServicesFactory, regenerate: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer contains no words.
    services, engine = open_with(regenerate=regenerate)
    recorder = RecordingGenerate(engine)
    monkeypatch.setattr(engine, "generate", recorder)
    output = await run(services)
    assert len(recorder.requests) == count
    assert ("regenerated" in output) is regenerate


async def test_validation_by_default_and_not(open_with: ServicesFactory) -> None:
    # R47
    services, _ = open_with("yes", enable_validation=False)
    assert "validation" not in await run(services)
    assert "validation" in await run(services, enable_validation=True)


async def test_openai_calls_are_validated_only_if_they_ask(open_with: ServicesFactory) -> None:
    services, _ = open_with("yes", enable_validation=True)
    assert "validation" not in await call(services)
    assert (await call(services, enable_validation=True))["validation"]["valid"] is True


async def test_no_checks_by_default(open_with: ServicesFactory) -> None:
    # R56
    text = "4111 1111 1111 1111, bob@example.com, an attack plan"
    services, _ = open_with(text)
    output = await run(services, "The weather, and an attack plan?")
    assert output["choices"][0]["text"] == text
    assert output["validation"]["valid"] is True
    assert not {"blocked", "redacted", "regenerated", "warnings"} & set(output)


# -- settings that cannot be used -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "expected"), BAD_SETTINGS, ids=BAD_IDS)
def test_invalid_setting_is_reported_in_one_line(
    name: str, value: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VALIDATION_RULES", str(SMALL_RULES))
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError) as raised:
        build_validation(Settings())
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_every_setting_of_validation_is_refused_somewhere() -> None:
    named = {name.lower() for name, _, _ in BAD_SETTINGS}
    boolean_settings = {"enable_validation", "regenerate"}
    of_validation = {
        name
        for name in Settings.model_fields
        if name.startswith(("validation", "blocked", "redact", "regenerate", "enable"))
    }
    assert named == of_validation - boolean_settings


def test_leaving_is_one_line_and_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        exit_on_setting_error(SettingError("REDACT_PII must be on"))
    assert leaving.value.code == 2
    assert capsys.readouterr() == ("", "REDACT_PII must be on\n")


# -- missing packages -----------------------------------------------------------------------------


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text("{}")
    return path


@pytest.fixture
def without_optional_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the optional packages."""
    _compile_schema.cache_clear()
    for package in ("jsonschema_rs", "py3langid"):
        monkeypatch.setitem(sys.modules, package, None)


SCHEMA_WARNING = (
    "json_schema was not checked. Checking answers against a JSON schema needs the package "
    "jsonschema-rs, which is not installed: `pip install jsonschema-rs` adds it."
)
LANGUAGE_WARNING = (
    "language was not checked. Checking the language of answers needs the package py3langid, "
    "which is not installed: `pip install py3langid` adds it."
)


@pytest.mark.usefixtures("without_optional_packages")
def test_missing_packages_are_logged_at_the_start(
    schema: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_validation(Settings(validation_schema=schema, validation_language="en"))
    result = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert result == [("WARNING", SCHEMA_WARNING), ("WARNING", LANGUAGE_WARNING)]


@pytest.mark.usefixtures("without_optional_packages")
@pytest.mark.parametrize("fields", [{}, {"validation": {"redact_pii": True}}])
async def test_every_answer_carries_the_warning(
    open_with: ServicesFactory, schema: Path, fields: dict[str, Any]
) -> None:
    # R16
    services, _ = open_with("yes", validation_schema=schema, validation_language="en")
    for output in (await run(services, **fields), await call(services, **fields)):
        assert output["warnings"] == [SCHEMA_WARNING, LANGUAGE_WARNING]


@pytest.mark.usefixtures("without_optional_packages")
async def test_all_else_works_without_them(open_with: ServicesFactory, schema: Path) -> None:
    services, _ = open_with(
        "Assistant: bob@", "example.com", validation_schema=schema, redact_pii="on"
    )
    output = await run(services)
    assert output["choices"][0]["text"] == "[email]"
    assert output["validation"]["valid"] is True
    assert json.dumps(output)


@pytest.mark.usefixtures("without_optional_packages")
async def test_packages_that_are_not_needed_cause_no_warning(
    open_with: ServicesFactory, caplog: pytest.LogCaptureFixture
) -> None:
    services, _ = open_with("yes")
    assert "warnings" not in await run(services)
    assert caplog.records == []


def test_draft_model_without_llamacpp_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    # R17
    build_validation(Settings(engine="llamacpp", draft_model_path=Path("draft.gguf")))
    assert caplog.messages == []
    build_validation(Settings(engine="rkllm", draft_model_path=Path("draft.gguf")))
    assert caplog.messages == [
        "DRAFT_MODEL_PATH has no effect: it is for the llamacpp engine, "
        "and this is the rkllm engine"
    ]

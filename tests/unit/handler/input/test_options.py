"""Read a request's `validation` and join it with the settings; every error message."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import InvalidRequest
from handler.input.options import (
    NO_DEFAULTS,
    PII_KINDS,
    OptionsInput,
    OptionsReader,
    _compile_schema,
)
from handler.input.request import TextRequest, parse_job
from tests.unit.handler.json_values import json_values
from validation import NO_OPTIONS, Options
from validation.options import pii

PATH = "input.validation"
INTENTS = ("weather", "general")
SCHEMA = {"type": "object", "required": ["city"]}
OTHER_SCHEMA = {"type": "array"}
CARD, IBAN, EMAIL = "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "bob@example.com"
ENGLISH = "During the interview you should explain your experience and ask some questions."
FRENCH = "Pendant l'entretien, vous devriez expliquer votre expérience et poser des questions."


def reader(**settings: Any) -> OptionsReader:
    return OptionsReader(OptionsInput(**settings), INTENTS)


def read(value: Any, **settings: Any) -> Options:
    """The options for a request; nothing may be missing here."""
    options, warnings = reader(**settings).read(value, PATH)
    assert warnings == ()
    return options


def redacted(options: Options, text: str = f"{CARD}, {IBAN}, {EMAIL}") -> str:
    return text if options.redactor is None else options.redactor.redact(text)[0]


def blocks(options: Options, text: str, intent: str = "general") -> bool:
    return any(blocker.find_block(text, intent) for blocker in options.blockers)


def rules(options: Options, text: str) -> list[str]:
    """Return the ids of the rules that an answer breaks."""
    return [issue.rule for check in options.checks.values() for issue in check.find_issues(text)]


# -- allowed values -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, {}, dict.fromkeys(OptionsInput.model_fields)])
def test_null_and_nothing_ask_for_nothing(value: Any) -> None:
    assert read(value) == NO_OPTIONS


def test_schema_is_what_an_answer_is_compared_with() -> None:
    options = read({"json_schema": SCHEMA})
    assert rules(options, '{"city": "Paris"}') == []
    assert rules(options, "{}") == ["schema_mismatch"]


def test_empty_schema_asks_for_any_json() -> None:
    options = read({"json_schema": {}})
    assert rules(options, "[1, 2]") == []
    assert rules(options, "one, two") == ["schema_not_json"]


@pytest.mark.parametrize("code", ["en", "EN"])
def test_language_is_what_an_answer_must_be_in(code: str) -> None:
    options = read({"language": code})
    assert rules(options, ENGLISH) == []
    assert rules(options, FRENCH) == ["language"]


@pytest.mark.parametrize(
    ("requested", "left"),
    [
        (True, "[card], [iban], [email]"),
        (False, f"{CARD}, {IBAN}, {EMAIL}"),
        ([], f"{CARD}, {IBAN}, {EMAIL}"),
        (["card"], f"[card], {IBAN}, {EMAIL}"),
        (["email", "iban", "email"], f"{CARD}, [iban], [email]"),
    ],
)
def test_kinds_to_redact(requested: object, left: str) -> None:
    assert redacted(read({"redact_pii": requested})) == left


def test_nothing_is_redacted_by_an_object_that_redacts_nothing() -> None:
    # Streams are held back for a redactor, so there must be none.
    assert read({"redact_pii": False}).redactor is None
    assert read({"redact_pii": []}).redactor is None


def test_kinds_are_those_that_there_are() -> None:
    assert PII_KINDS == pii.KINDS


def test_blocked_terms_match_complete_words() -> None:
    options = read({"blocked_terms": ["attack plan", "bomb"]})
    assert blocks(options, "An ATTACK  plan?")
    assert blocks(options, "a bomb")
    assert not blocks(options, "a bombastic plan")


def test_blocked_intents_must_be_known_to_the_validator() -> None:
    options = read({"blocked_intents": ["weather"]})
    assert blocks(options, "Will it rain?", "weather")
    assert not blocks(options, "Will it rain?", "general")


@pytest.mark.parametrize(
    ("requested", "expected"), [(True, True), (1, True), (False, False), (0, False)]
)
def test_regenerate(requested: object, expected: bool) -> None:
    assert read({"regenerate": requested}).regenerate is expected


# -- refused values -------------------------------------------------------------------------------

SCHEMA_MESSAGE = "must be a JSON Schema, as an object"
PII_MESSAGE = "must be true, false or an array of card, iban, email, phone, key, ssn"
LANGUAGE_MESSAGE = "must be an ISO 639-1 code such as en"
TERMS_MESSAGE = "must be an array of up to 1000 words or phrases of up to 200 characters"
BOOLEAN_MESSAGE = "must be true or false"

WRONG: list[tuple[str, Any, str]] = [
    ("json_schema", "{}", f'{SCHEMA_MESSAGE}, got "{{}}"'),
    ("json_schema", True, f"{SCHEMA_MESSAGE}, got true"),
    ("json_schema", [{}], f"{SCHEMA_MESSAGE}, got [{{}}]"),
    ("redact_pii", "card", f'{PII_MESSAGE}, got "card"'),
    ("redact_pii", 1, f"{PII_MESSAGE}, got 1"),
    ("redact_pii", ["card", "dna"], f'{PII_MESSAGE}, got ["card","dna"]'),
    ("redact_pii", {"card": True}, f'{PII_MESSAGE}, got {{"card":true}}'),
    ("language", 5, f"{LANGUAGE_MESSAGE}, got 5"),
    ("language", ["en"], f'{LANGUAGE_MESSAGE}, got ["en"]'),
    ("blocked_intents", "weather", 'must be an array of intents, got "weather"'),
    ("blocked_intents", [5], "must be an array of intents, got [5]"),
    ("blocked_terms", "bomb", f'{TERMS_MESSAGE}, got "bomb"'),
    ("blocked_terms", [""], f'{TERMS_MESSAGE}, got [""]'),
    ("blocked_terms", ["bomb", None], f'{TERMS_MESSAGE}, got ["bomb",null]'),
    ("blocked_terms", ["x" * 201], f"{TERMS_MESSAGE}, got an array of 1"),
    ("blocked_terms", ["x"] * 1001, f"{TERMS_MESSAGE}, got an array of 1001"),
    ("repair_json", 1, f"{BOOLEAN_MESSAGE}, got 1"),
    ("regenerate", 2, f"{BOOLEAN_MESSAGE}, got 2"),
    ("regenerate", "1", f'{BOOLEAN_MESSAGE}, got "1"'),
    ("regenerate", [], f"{BOOLEAN_MESSAGE}, got []"),
]


def refusal(value: Any, **settings: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        reader(**settings).read(value, PATH)
    return raised.value


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_value_is_refused_in_one_sentence(name: str, value: Any, message: str) -> None:
    # R50
    error = refusal({name: value})
    assert error.message == f"{PATH}.{name} {message}"
    assert error.param == f"{PATH}.{name}"


def test_every_field_is_refused_somewhere() -> None:
    assert {name for name, _, _ in WRONG} == set(OptionsInput.model_fields)


UNUSABLE: list[tuple[str, Any, str]] = [
    (
        "json_schema",
        {"type": "thing"},
        'The JSON schema is invalid at type: "thing" is not allowed there.',
    ),
    (
        "json_schema",
        {"const": 10**30},
        "The JSON schema is not JSON: Integer exceeds 64-bit range.",
    ),
    (
        "json_schema",
        {"\ud800": 1},
        "The JSON schema is not JSON: str is not valid UTF-8: surrogates not allowed.",
    ),
    (
        "language",
        "klingon",
        "There is no language 'klingon' to check for; use one of 114 ISO 639-1 codes, "
        "such as en, de, fr, es, pt, zh or ja.",
    ),
    (
        "language",
        "",
        "There is no language '' to check for; use one of 114 ISO 639-1 codes, "
        "such as en, de, fr, es, pt, zh or ja.",
    ),
    (
        "blocked_intents",
        ["weather", "sports"],
        'there is no intent "sports", there are: weather, general',
    ),
    ("blocked_terms", ["bomb", " "], "A blocked term must have something visible in it."),
]


@pytest.mark.parametrize(("name", "value", "reason"), UNUSABLE)
def test_value_that_cannot_be_used_is_refused_with_the_reason(
    name: str, value: Any, reason: str
) -> None:
    # R50
    error = refusal({name: value})
    assert error.message == f"{PATH}.{name}: {reason}"
    assert error.param == f"{PATH}.{name}"


@pytest.mark.parametrize(
    ("value", "printed"), [(5, "5"), ("on", '"on"'), ([], "[]"), (True, "true"), ([{}], "[{}]")]
)
def test_anything_but_an_object_is_refused(value: Any, printed: str) -> None:
    # R50
    error = refusal(value)
    assert error.message == f"{PATH} must be an object, got {printed}"
    assert error.param == PATH


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("jsonSchema", f"did you mean {PATH}.json_schema?"),
        ("redact_pi", f"did you mean {PATH}.redact_pii?"),
        ("zebra", f"{PATH}.zebra is unknown and was ignored"),
        ("\ud800", f'{PATH}."\\ud800" is unknown and was ignored'),
    ],
)
def test_options_reader_warns_about_every_unknown_field(name: str, sentence: str) -> None:
    # R16, R61: nothing unknown fails a request, and no check is left out without a word.
    _, [warning] = NO_DEFAULTS.read({"regenerate": True, name: True}, PATH)
    assert warning.endswith(sentence)


def test_error_names_the_path_of_the_field() -> None:
    # An OpenAI body has it at the top.
    with pytest.raises(InvalidRequest) as raised:
        NO_DEFAULTS.read({"language": 5})
    assert raised.value.message == f"validation.language {LANGUAGE_MESSAGE}, got 5"


def test_without_a_validator_there_are_no_intents_to_block() -> None:
    with pytest.raises(InvalidRequest, match=r'^validation\.blocked_intents: there is no intent "'):
        NO_DEFAULTS.read({"blocked_intents": ["weather"]})


NAMES = st.sampled_from([*OptionsInput.model_fields]) | st.text(st.characters(), max_size=3)


@given(
    json_values()
    | st.dictionaries(NAMES, json_values() | st.sampled_from(["en", ["weather"], True]))
)
def test_anything_at_all_raises_nothing_but_invalid_request(value: Any) -> None:
    # R50
    try:
        reader(redact_pii=True).read(value, PATH)
    except InvalidRequest as error:
        refused = error
    else:
        return
    assert str(refused.param).startswith(PATH)
    refused.message.encode()
    assert "\n" not in refused.message


# -- requests and settings ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, {}, {"language": None, "json_schema": None}])
def test_settings_apply_without_request_options(value: Any) -> None:
    options = read(
        value,
        json_schema=SCHEMA,
        language="en",
        redact_pii=["card"],
        blocked_terms=["bomb"],
        blocked_intents=["weather"],
        regenerate=True,
    )
    assert rules(options, "{}") == ["schema_mismatch"]
    assert rules(options, FRENCH) == ["schema_not_json", "language"]
    assert redacted(options, CARD) == "[card]"
    assert blocks(options, "bomb")
    assert blocks(options, "", "weather")
    assert options.regenerate is True


def test_request_replaces_the_schema() -> None:
    options = read({"json_schema": OTHER_SCHEMA}, json_schema=SCHEMA)
    assert rules(options, "[]") == []
    assert rules(options, '{"city": "Paris"}') == ["schema_mismatch"]


def test_request_replaces_the_language() -> None:
    options = read({"language": "fr"}, language="en")
    assert rules(options, FRENCH) == []
    assert rules(options, ENGLISH) == ["language"]


@pytest.mark.parametrize("requested", [True, False])
def test_request_replaces_regenerate(requested: bool) -> None:
    assert read({"regenerate": requested}, regenerate=not requested).regenerate is requested


@pytest.mark.parametrize("requested", [False, [], None, ["card"]])
def test_request_cannot_lift_a_redaction(requested: object) -> None:
    assert redacted(read({"redact_pii": requested}, redact_pii=True)) == "[card], [iban], [email]"


def test_request_can_have_more_redacted() -> None:
    options = read({"redact_pii": ["email"]}, redact_pii=["card"])
    assert redacted(options) == f"[card], {IBAN}, [email]"


@pytest.mark.parametrize("requested", [[], None, ["fuse"]])
def test_request_cannot_lift_a_blocked_term(requested: object) -> None:
    assert blocks(read({"blocked_terms": requested}, blocked_terms=["bomb"]), "a bomb")


def test_request_can_have_more_terms_blocked() -> None:
    options = read({"blocked_terms": ["fuse"]}, blocked_terms=["bomb"])
    assert blocks(options, "a fuse")
    assert not blocks(options, "a match")


@pytest.mark.parametrize("requested", [[], None, ["general"]])
def test_request_cannot_lift_a_blocked_intent(requested: object) -> None:
    options = read({"blocked_intents": requested}, blocked_intents=["weather"])
    assert blocks(options, "", "weather")


def test_request_can_have_more_intents_blocked() -> None:
    options = read({"blocked_intents": ["general"]}, blocked_intents=["weather"])
    assert blocks(options, "", "general")


def test_one_request_leaves_nothing_for_the_next() -> None:
    of_settings = reader(blocked_terms=["bomb"])
    of_settings.read({"blocked_terms": ["fuse"], "redact_pii": True, "language": "en"})
    options, _ = of_settings.read(None)
    assert not blocks(options, "a fuse")
    assert options.redactor is None
    assert options.checks == {}


# -- missing packages -----------------------------------------------------------------------------

MISSING = {
    "json_schema": (
        "jsonschema_rs",
        SCHEMA,
        "Checking answers against a JSON schema needs the package jsonschema-rs, which is not "
        "installed: `pip install jsonschema-rs` adds it.",
    ),
    "language": (
        "py3langid",
        "en",
        "Checking the language of answers needs the package py3langid, which is not installed: "
        "`pip install py3langid` adds it.",
    ),
}


@pytest.fixture(params=MISSING)
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Remove a package; return the option that needs it."""
    name: str = request.param
    # A schema that was compiled before would still be cached.
    _compile_schema.cache_clear()
    monkeypatch.setitem(sys.modules, MISSING[name][0], None)
    return name


def test_missing_package_is_a_warning(missing: str) -> None:
    _, value, reason = MISSING[missing]
    options, warnings = reader().read({missing: value, "redact_pii": True}, PATH)
    assert warnings == (f"{PATH}.{missing} was not checked. {reason}",)
    assert options.checks == {}
    assert redacted(options, CARD) == "[card]"


def test_missing_package_of_a_setting_is_a_warning_of_every_request(missing: str) -> None:
    _, value, reason = MISSING[missing]
    of_settings = reader(**{missing: value})
    expected = (f"{missing} was not checked. {reason}",)
    assert of_settings.warnings == expected
    assert of_settings.read(None, PATH) == (NO_OPTIONS, expected)
    # The setting requires the package, not this request.
    assert of_settings.read({"regenerate": True}, PATH)[1] == expected


def test_missing_package_without_use_causes_no_warning(missing: str) -> None:
    other = next(name for name in MISSING if name != missing)
    assert read({other: MISSING[other][1]}).checks.keys() == {other}


# -- caches ---------------------------------------------------------------------------------------


def test_compiled_schema_is_kept_for_the_next_request() -> None:
    first = read({"json_schema": SCHEMA}).checks["json_schema"]
    assert read({"json_schema": dict(SCHEMA)}).checks["json_schema"] is first
    assert read({"json_schema": OTHER_SCHEMA}).checks["json_schema"] is not first


def test_schemas_are_kept_in_bounded_number() -> None:
    _compile_schema.cache_clear()
    for number in range(100):
        read({"json_schema": {"const": number}})
    assert 0 < _compile_schema.cache_info().currsize < 100


def test_settings_are_read_once() -> None:
    of_settings = reader(json_schema=SCHEMA, redact_pii=True)
    assert of_settings.read(None)[0] is of_settings.read(None)[0] is of_settings.defaults


# -- in a job -------------------------------------------------------------------------------------


def test_job_carries_its_options() -> None:
    request = parse_job({"input": {"prompt": "x", "validation": {"redact_pii": ["card"]}}})
    assert isinstance(request, TextRequest)
    assert redacted(request.options, CARD) == "[card]"


def test_job_with_a_wrong_option_names_it_by_its_path() -> None:
    # R50
    with pytest.raises(InvalidRequest) as raised:
        parse_job({"input": {"prompt": "x", "validation": {"regenerate": "yes"}}})
    assert raised.value.message == f'{PATH}.regenerate {BOOLEAN_MESSAGE}, got "yes"'
    assert raised.value.param == f"{PATH}.regenerate"


def test_job_warns_about_a_missing_package(missing: str) -> None:
    _, value, reason = MISSING[missing]
    request = parse_job({"input": {"prompt": "x", "validation": {missing: value}}})
    assert isinstance(request, TextRequest)
    assert request.warnings == (f"{PATH}.{missing} was not checked. {reason}",)

"""Warn about misspelled, misplaced and unsupported keys, one sentence each (R61)."""

from __future__ import annotations

import time

import pytest

from handler.apis.core.best_of import build_requests
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.body_keys import BODY_KEYS, TOKENIZE_KEYS
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.parameters import ChatInput, CompletionInput
from handler.apis.responses.request import ResponsesInput
from handler.apis.responses.request import read_request as read_responses_request
from handler.errors import InvalidRequest
from handler.input.job_keys import INPUT_KEYS, SAMPLING_KEYS, find_job_warnings
from handler.input.parameter_names import IGNORED, NEUTRAL
from handler.input.request import OpenAIRequest, TextRequest, parse_job
from handler.input.unknown_keys import MAX_COMPARED_KEYS, MAX_READ_KEYS, KnownKeys
from tests.unit.handler.apis.served_model import TINY
from tools.docs.support_matrix import create_call

KNOWN = KnownKeys(
    "box.",
    {"alpha_rate", "beta"},
    misplaced={"gamma": "other.", "delta": ""},
    notes={"omega": "is not supported and was ignored"},
)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("alpha_rat", "box.alpha_rat is unknown and was ignored: did you mean box.alpha_rate?"),
        ("alphaRate", "box.alphaRate is unknown and was ignored: did you mean box.alpha_rate?"),
        ("ALPHA-RATE", "box.ALPHA-RATE is unknown and was ignored: did you mean box.alpha_rate?"),
        ("gamma", "box.gamma was ignored: put it in other"),
        ("gama", "box.gama is unknown and was ignored: did you mean other.gamma?"),
        ("delta", "box.delta was ignored: put it beside input"),
        ("omega", "box.omega is not supported and was ignored"),
        (
            "omeg",
            "box.omeg is unknown and was ignored: did you mean omega, which is not supported here?",
        ),
        (
            "beta\nx",
            'box."beta\\nx" is unknown and was ignored: did you mean box.beta?',
        ),
    ],
)
def test_warnings_name_the_key_and_what_to_do(name: str, sentence: str) -> None:
    assert KNOWN.warnings({"beta": 1, name: 1}) == (sentence,)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"beta": 1},
        {"zebra": 1},
        {"x": 1, "": 1},
        {"beta" * 100: 1},
        {"alpha_rat": None},
        {"omega": False},
    ],
)
def test_warnings_are_empty_for_known_foreign_and_unset_keys(body: dict[str, object]) -> None:
    assert KNOWN.warnings(body) == ()


def test_warnings_are_bounded_in_number_and_time_when_there_are_thousands_of_keys() -> None:
    body = {f"temperatur{index}": index for index in range(50_000)}
    began = time.process_time()
    warnings = SAMPLING_KEYS.warnings(body)
    # Four comparisons of each key would take minutes.
    assert time.process_time() - began < 2
    assert len(warnings) == MAX_COMPARED_KEYS + 1
    assert warnings[-1] == (
        f"input.sampling_params has at least {MAX_READ_KEYS} unknown keys, of which the first "
        f"{MAX_COMPARED_KEYS} were checked for misspelled names"
    )


def test_warnings_count_the_unknown_keys_when_all_of_them_are_looked_at() -> None:
    body = {"top_p": 0.5} | {f"temperatur{index}": index for index in range(100)}
    assert SAMPLING_KEYS.warnings(body)[-1] == (
        f"input.sampling_params has 100 unknown keys, of which the first {MAX_COMPARED_KEYS} were "
        "checked for misspelled names"
    )


# Misspellings that users have written.
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("top-p", "top_p"),
        ("maxTokens", "max_tokens"),
        ("stop_sequences", "stop"),
        ("n_predict", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("repeat_penalty", "repetition_penalty"),
        ("repitition_penality", "repetition_penalty"),
    ],
)
def test_every_dialect_names_a_misspelled_parameter(name: str, suggestion: str) -> None:
    at = f"input.sampling_params.{suggestion}?"
    for result in (
        parsed({"prompt": "x", "sampling_params": {name: 1}}),
        parsed({"prompt": "x", name: 1}),
        parsed({"prompt": "x"}, **{name: 1}),
    ):
        assert len(result) == 1
        assert result[0].endswith(f"did you mean {at}")
    for keys in BODY_KEYS.values():
        [warning] = keys.warnings({name: 1})
        assert warning == f"{name} is unknown and was ignored: did you mean {suggestion}?"


def parsed(body: dict[str, object], **job_keys: object) -> tuple[str, ...]:
    request = parse_job({"id": "1", "input": body, **job_keys})
    assert isinstance(request, TextRequest | OpenAIRequest)
    return request.warnings


@pytest.mark.parametrize(
    ("body", "job_keys", "sentence"),
    [
        ({"max_tokens": 1}, {}, "input.max_tokens was ignored: put it in input.sampling_params"),
        ({}, {"temperature": 1}, "temperature was ignored: put it in input.sampling_params"),
        (
            {"sampling_params": {"prompt": "y"}},
            {},
            "input.sampling_params.prompt was ignored: put it in input",
        ),
        ({"redact_pii": True}, {}, "input.redact_pii was ignored: put it in input.validation"),
        ({"ttl": 1}, {}, "input.ttl was ignored: put it in policy"),
        ({"webhook": "http://x"}, {}, "input.webhook was ignored: put it beside input"),
        (
            {},
            {"policy": {"execution_timeout": 1}},
            "policy.execution_timeout is unknown and was ignored: "
            "did you mean policy.executionTimeout?",
        ),
        (
            {"response_format": {"type": "json_object"}},
            {},
            "input.response_format was ignored: put it in input.sampling_params",
        ),
    ],
)
def test_job_warns_about_a_known_key_in_the_wrong_object(
    body: dict[str, object], job_keys: dict[str, object], sentence: str
) -> None:
    assert parsed({"prompt": "x", **body}, **job_keys) == (sentence,)


OF_OTHER_SERVERS = (
    *("priority", "repetition_detection"),
    *("dry_multiplier", "top_n_sigma", "mirostat", "xtc_probability", "typical_p"),
)


@pytest.mark.parametrize("name", OF_OTHER_SERVERS)
def test_every_dialect_warns_about_parameters_that_only_other_servers_have(name: str) -> None:
    # clients.md 14
    assert name in IGNORED
    [warning] = parsed({"prompt": "x", "sampling_params": {name: 5}})
    assert warning == f"input.sampling_params.{name} is not supported and was ignored"
    for shape in ("completions", "chat"):
        [warning] = create_call(shape, {name: 5}).parsed.warnings
        assert warning == f"{name} is not supported and was ignored"


def takes_true(name: str) -> bool:
    return any(each is True for each in NEUTRAL.get(name, ()))


def test_no_warning_for_an_unsupported_parameter_without_effect(
    subtests: pytest.Subtests,
) -> None:
    cases = [(name, value) for name, values in NEUTRAL.items() for value in values]
    # The default of every other flag is false, and null is no value at all.
    cases += [(name, False) for name in IGNORED if not takes_true(name)]
    cases += [(name, None) for name in IGNORED]
    for name, value in cases:
        with subtests.test(name=name, value=value):
            assert parsed({"prompt": "x", "sampling_params": {name: value}}) == ()
            for shape, model in (("completions", CompletionInput), ("chat", ChatInput)):
                if name not in model.model_fields:
                    assert create_call(shape, {name: value}).parsed.warnings == ()
            if name not in ResponsesInput.model_fields:
                body = {"input": "hi", name: value}
                request = read_responses_request(body, (), "", TINY, CallDefaults())
                assert request.call.warnings == ()


def test_other_values_of_an_unsupported_parameter_cause_a_warning(
    subtests: pytest.Subtests,
) -> None:
    for name in NEUTRAL:
        other = False if takes_true(name) else "other"
        with subtests.test(name=name):
            assert parsed({"prompt": "x", "sampling_params": {name: other}})


def test_neutral_values_are_those_of_unsupported_parameters() -> None:
    assert NEUTRAL.keys() <= IGNORED


def test_warnings_are_not_lost_when_the_parameters_were_read_before() -> None:
    # The parameters that matter are remembered; unknown keys are not among them.
    for _ in range(2):
        assert parsed({"prompt": "x", "sampling_params": {"top_p": 0.5}}) == ()
        result = parsed({"prompt": "x", "sampling_params": {"top_p": 0.5, "max_token": 1}})
        assert len(result) == 1
        assert create_call("completions", {"top_p": 0.5}).parsed.warnings == ()
        assert (
            len(
                build_requests(create_call("completions", {"top_p": 0.5, "max_token": 1}).parsed)[
                    0
                ].warnings
            )
            == 1
        )


def test_labels_that_change_no_answer_are_accepted_in_silence() -> None:
    body = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "cache_prompt": True}
    for keys in (*BODY_KEYS.values(), TOKENIZE_KEYS, INPUT_KEYS, SAMPLING_KEYS):
        assert keys.warnings(body) == ()


def test_prompt_in_a_chat_and_messages_in_a_completion_are_named() -> None:
    assert BODY_KEYS[ChatInput].warnings({"prompt": "x"}) == (
        "prompt is only for completions and was ignored",
    )
    assert BODY_KEYS[CompletionInput].warnings({"messages": []}) == (
        "messages is only for chats and was ignored",
    )


def test_no_warnings_for_a_complete_job() -> None:
    job = {"id": "1", "input": {}, "webhook": "", "policy": {"ttl": 1}, "s3Config": {}}
    assert find_job_warnings(job) == ()


def test_unknown_keys_never_fail_a_request() -> None:
    # R16; a known one that is wrong still does.
    body = {f"key{index}": object() for index in range(100)}
    assert COMPLETIONS.input_model is CompletionInput
    parsed({"prompt": "x", "sampling_params": dict(body)})
    with pytest.raises(InvalidRequest):
        parsed({"prompt": "x", "sampling_params": {"top_p": 5}})

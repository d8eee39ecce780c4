"""Parse a job's input: every error message, and the defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Chat, Priority, SamplingParams
from engine.request import TemplateMode
from handler.errors import InvalidRequest
from handler.input.request import (
    OpenAIRequest,
    TextRequest,
    asks_to_stream,
    is_openai_call,
    parse_job,
)
from tests.unit.handler.json_values import json_values

ROOT = Path(__file__).parents[4]
SHAPES = "prompt, messages, openai_input with openai_route, or route with body and method"
INPUT = f"input must be an object with {SHAPES}"
PROMPT = "input.prompt must be a non-empty string"
CHAT = "/v1/chat/completions"
MESSAGES = "input.messages must be a non-empty array"


def text(job_input: dict[str, Any], **job: Any) -> TextRequest:
    request = parse_job({"id": "job-1", "input": job_input, **job})
    assert isinstance(request, TextRequest)
    return request


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # R50: the job, the field, the sentence.
    ({}, "input", f"{INPUT}, got null"),
    ({"input": None}, "input", f"{INPUT}, got null"),
    ({"input": "hi"}, "input", f'{INPUT}, got "hi"'),
    ({"input": ["hi"]}, "input", f'{INPUT}, got ["hi"]'),
    ({"input": {}}, "input.prompt", f"input must have {SHAPES}, got an empty object"),
    ({"input": {"text": 1, "a": 2}}, "input.prompt", f"input must have {SHAPES}, got only a, text"),
    ({"input": {"prompt": ""}}, "input.prompt", f'{PROMPT}, got ""'),
    ({"input": {"prompt": 5}}, "input.prompt", f"{PROMPT}, got 5"),
    ({"input": {"prompt": None}}, "input.prompt", f"{PROMPT}, got null"),
    ({"input": {"prompt": ["a"]}}, "input.prompt", f'{PROMPT}, got ["a"]'),
    ({"input": {"prompt": {"a": 1}}}, "input.prompt", f'{PROMPT}, got {{"a":1}}'),
    (
        {"input": {"prompt": "ok \ud83d"}},
        "input.prompt",
        "input.prompt must be Unicode text, got half a surrogate pair at character 3",
    ),
    ({"input": {"messages": []}}, "input.messages", f"{MESSAGES}, got []"),
    ({"input": {"messages": "hi"}}, "input.messages", f'{MESSAGES}, got "hi"'),
    (
        {"input": {"messages": [{"role": "bot", "content": "x"}]}},
        "input.messages[0].role",
        "input.messages[0].role must be one of "
        'developer, system, user, assistant, tool, function, got "bot"',
    ),
    (
        {"input": {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}},
        "input",
        "input must have prompt or messages, not both",
    ),
    (
        {"input": {"prompt": "a", "sampling_params": 5}},
        "input.sampling_params",
        "input.sampling_params must be an object, got 5",
    ),
    (
        {"input": {"prompt": "a", "sampling_params": [{"top_p": 1}]}},
        "input.sampling_params",
        'input.sampling_params must be an object, got [{"top_p":1}]',
    ),
    (
        {"input": {"prompt": "a", "sampling_params": {"temperature": "hot"}}},
        "input.sampling_params.temperature",
        'input.sampling_params.temperature must be a number from 0 to 2, got "hot"',
    ),
    *(
        (
            {"input": {"prompt": "a", "lora": name}},
            "input.lora",
            f"input.lora must be an adapter's name, got {json.dumps(name)}",
        )
        for name in ("", 5, True)
    ),
    (
        {"input": {"prompt": "a", "lora": "ok \ud83d"}},
        "input.lora",
        "input.lora must be Unicode text, got half a surrogate pair at character 3",
    ),
    (
        {"input": {"prompt": "a", "enable_validation": "yes"}},
        "input.enable_validation",
        'input.enable_validation must be true or false, got "yes"',
    ),
    (
        {"input": {"prompt": "a", "enable_validation": "\ud800"}},
        "input.enable_validation",
        'input.enable_validation must be true or false, got "\\ud800"',
    ),
    (
        {"input": {"prompt": "a", "stream": 1}},
        "input.stream",
        "input.stream must be true or false, got 1",
    ),
    (
        {"input": {"openai_route": 5}},
        "input.openai_route",
        "input.openai_route must be a string, got 5",
    ),
    (
        {"input": {"route": 5}},
        "input.route",
        "input.route must be a string, got 5",
    ),
    (
        {"input": {"route": "/v1/completions", "body": [1]}},
        "input.body",
        "input.body must be an object, got [1]",
    ),
    (
        {"input": {"route": "/v1/completions", "method": "GET"}},
        "input.method",
        'input.method must be POST for /v1/completions, got "GET"',
    ),
    (
        {"input": {"route": "/v1/models", "method": 5}},
        "input.method",
        "input.method must be GET for /v1/models, got 5",
    ),
    (
        {"input": {"openai_input": {}, "stream": "yes"}},
        "input.stream",
        'input.stream must be true or false, got "yes"',
    ),
    (
        {"input": {"openai_route": "/v1/completions", "openai_input": "hi"}},
        "input.openai_input",
        'input.openai_input must be an object, got "hi"',
    ),
]


@pytest.mark.parametrize(("job", "param", "message"), REFUSED)
def test_refused_in_one_sentence(job: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_job({"id": "job-1", **job})
    assert raised.value.message == message
    assert raised.value.param == param


def test_defaults() -> None:
    # R49, R47
    request = text({"prompt": "hi"})
    assert request.generation.prompt == "hi"
    assert request.generation.request_id == "job-1"
    assert request.generation.priority is Priority.JOB
    assert request.generation.sampling == SamplingParams(
        max_tokens=150, temperature=0.7, top_p=0.9, top_k=50
    )
    assert request.streaming is False
    assert request.validation is True
    assert request.warnings == ()


def test_shipped_test_input_is_a_good_job() -> None:
    # R44
    request = parse_job({"id": "local_test", **json.loads((ROOT / "test_input.json").read_text())})
    assert isinstance(request, TextRequest)
    assert request.generation.prompt == "What skills should I learn for backend development?"
    assert request.generation.sampling.max_tokens == 150
    assert request.streaming
    assert request.validation


def test_messages_are_read_as_a_chat() -> None:
    # R44
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    request = text({"messages": [*turns, {"role": "user", "content": "three"}, turns[1]]})
    assert isinstance(request.generation.prompt, Chat)
    assert [turn.content for turn in request.generation.prompt.messages] == [
        "one",
        "two",
        "three",
        "two",
    ]
    assert request.prompt_text == "three"


def test_prompt_as_validation_sees_it() -> None:
    assert text({"prompt": "hi"}).prompt_text == "hi"
    assert text({"messages": [{"role": "system", "content": "x"}]}).prompt_text == ""


TURNS = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "tool", "content": "three"},
    {"role": "developer", "content": "and brief"},
    {"role": "function", "content": "four"},
    {"role": "user", "content": "five"},
]


def test_user_text_joins_all_user_turns() -> None:
    # R56: results of tools are from the user's side as well.
    assert text({"messages": TURNS}).user_text == "one\nthree\nfour\nfive"
    assert text({"prompt": "hi"}).user_text == "hi"
    assert text({"prompt": "hi", "apply_chat_template": True}).user_text == "hi"


def test_system_text_joins_system_turns() -> None:
    assert text({"messages": TURNS}).system_text == "be nice\nand brief"
    assert text({"prompt": "hi"}).system_text == ""


@pytest.mark.parametrize("default", ["auto", "on", "off"])
@pytest.mark.parametrize(("apply", "mode"), [(None, None), (True, "on"), (False, "off")])
def test_apply_chat_template_of_a_job_overrides_the_setting(
    default: TemplateMode, apply: bool | None, mode: TemplateMode | None
) -> None:
    # R58: the prompt itself stays text, which is what validation sees.
    job = {"input": {"prompt": "hi", "apply_chat_template": apply}}
    request = parse_job(job, chat_template=default)
    assert isinstance(request, TextRequest)
    assert request.generation.chat_template == (mode or default)
    assert request.generation.prompt == request.prompt_text == "hi"


@pytest.mark.parametrize(
    "job_input",
    [
        {"prompt": "hi", "messages": None, "openai_route": None, "sampling_params": None},
        {"prompt": "hi", "enable_validation": None, "stream": None, "openai_input": None},
    ],
)
def test_null_counts_as_unset(job_input: dict[str, Any]) -> None:
    assert text(job_input) == text({"prompt": "hi"})


def test_null_prompt_with_messages_counts_as_unset() -> None:
    turns = [{"role": "user", "content": "hi"}]
    assert text({"prompt": None, "messages": turns}) == text({"messages": turns})


@pytest.mark.parametrize("requests", [True, False])
@pytest.mark.parametrize("default", [True, False])
def test_enable_validation_or_the_default(requests: bool, default: bool) -> None:
    # R47
    silent = parse_job({"input": {"prompt": "x"}}, validation=default)
    expected = parse_job(
        {"input": {"prompt": "x", "enable_validation": requests}}, validation=default
    )
    assert isinstance(silent, TextRequest)
    assert isinstance(expected, TextRequest)
    assert silent.validation is default
    assert expected.validation is requests


@pytest.mark.parametrize(
    "fields", [{"sampling_params": {"stream": True}}, {"stream": True}, {"stream": True, "x": 1}]
)
def test_stream_may_be_set_in_the_input_or_its_parameters(fields: dict[str, Any]) -> None:
    assert text({"prompt": "hi", **fields}).streaming


@pytest.mark.parametrize("name", ["best_of", "prompt_cache"])
def test_ignored_parameter_is_warned_about(name: str) -> None:
    # R16, R83
    request = text({"prompt": "hi", "sampling_params": {name: 3}, "unknown": 1})
    assert request.warnings == (f"input.sampling_params.{name} is not supported and was ignored",)


@pytest.mark.parametrize(
    ("job", "name"),
    [({"id": 5}, "5"), ({"id": ""}, "local"), ({"id": None}, "local"), ({}, "local")],
)
def test_any_job_id_names_the_request(job: dict[str, Any], name: str) -> None:
    request = parse_job({**job, "input": {"prompt": "x"}})
    assert isinstance(request, TextRequest)
    assert request.generation.request_id == name


def test_openai_body_is_passed_on_unchanged() -> None:
    # R44
    body = {"model": "m", "messages": 5}
    job = {"input": {"openai_route": "/v1/x", "openai_input": body, "prompt": 5}}
    expected = ("input.prompt was ignored: put it in input.openai_input",)
    assert parse_job(job) == OpenAIRequest("/v1/x", body, warnings=expected)


def test_openai_call_without_a_body_has_an_empty_one() -> None:
    # RunPod's bridge sends this for GET /v1/models.
    assert parse_job({"input": {"openai_route": "/v1/models"}}) == OpenAIRequest("/v1/models", {})
    requests = {"openai_route": "/v1/models", "openai_input": None}
    assert parse_job({"input": requests}) == OpenAIRequest("/v1/models", {})


@pytest.mark.parametrize(
    ("job_input", "route", "body"),
    [
        ({"openai_input": {"messages": 5}}, CHAT, {"messages": 5}),
        ({"route": "/v1/completions", "body": {"prompt": "a"}}, "/v1/completions", {"prompt": "a"}),
        ({"route": "/v1/x", "body": {}, "method": "post"}, "/v1/x", {}),
        ({"route": "/v1/models", "method": "GET"}, "/v1/models", {}),
        ({"route": "/v1/models", "body": None}, "/v1/models", {}),
        (
            {"openai_input": {"n": 1}, "stream": True},
            "/v1/chat/completions",
            {"n": 1, "stream": True},
        ),
        (
            {"openai_input": {"stream": False}, "stream": True},
            "/v1/chat/completions",
            {"stream": False},
        ),
        ({"openai_input": {}, "stream": False}, "/v1/chat/completions", {}),
    ],
)
def test_calls_in_the_forms_of_worker_vllm_are_read(
    job_input: dict[str, Any], route: str, body: dict[str, Any]
) -> None:
    assert parse_job({"input": job_input}) == OpenAIRequest(route, body)


@pytest.mark.parametrize(
    ("job_input", "is_call", "streams"),
    [
        ({"prompt": "a"}, False, False),
        ({"prompt": "a", "sampling_params": {"stream": True}}, False, True),
        ({"prompt": "a", "stream": True}, False, True),
        ({"openai_input": {"stream": True}}, True, True),
        ({"openai_route": "/v1/models"}, True, False),
        ({"route": "/v1/completions", "body": {"stream": True}}, True, True),
        ({"route": "/v1/completions", "stream": True}, True, True),
    ],
)
def test_kind_of_a_job_is_known_from_its_input(
    job_input: dict[str, Any], is_call: bool, streams: bool
) -> None:
    assert is_openai_call(job_input) is is_call
    assert asks_to_stream(job_input) is streams


NAMES = [
    "prompt",
    "route",
    "body",
    "method",
    "openai_input",
    "messages",
    "sampling_params",
    "validation",
    "enable_validation",
    "openai_route",
    "stream",
]


@given(json_values() | st.dictionaries(st.sampled_from(NAMES), json_values()))
def test_arbitrary_json_raises_nothing_but_invalid_request(job_input: Any) -> None:
    # R50
    try:
        parse_job({"id": "x", "input": job_input})
    except InvalidRequest as error:
        refused = error
    else:
        return
    assert str(refused.param).startswith("input")
    refused.message.encode()


def test_adapter_is_passed_to_the_engine() -> None:
    assert text({"prompt": "a"}).generation.sampling.lora is None
    assert text({"prompt": "a", "lora": "french"}).generation.sampling.lora == "french"

"""Parameters that are refused, and parameters that are ignored with a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine import Capabilities
from handler.apis.core.best_of import MAX_GENERATIONS
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.prepared_call import adapt_call
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.errors import InvalidRequest, NotFound, error_info
from handler.input.sampling import MAX_INT32
from tests.unit.handler.apis.openai.refusals import MISSING, REFUSALS, Refusal, refusals

SHAPES: dict[str, tuple[EndpointSpec, dict[str, Any]]] = {
    "completions": (COMPLETIONS, {"model": "tiny", "prompt": "hi"}),
    "chat": (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}),
}
DIALECTS = (OPENAI, ORACLE, OVMS)


# No engine can do less.
UNABLE = Capabilities(backend="tiny", model="tiny", context_length=10)


def create_call(
    dialect: Dialect, shape: str, body: dict[str, Any], default: int | None = None
) -> OpenAICall:
    of, minimal_body = SHAPES[shape]
    sent = {name: value for name, value in (minimal_body | body).items() if value is not MISSING}
    return OpenAICall(of, sent, "tiny", CallDefaults(max_tokens=default), dialect=dialect)


def test_every_requirement_has_a_refusal() -> None:
    # All requirements with "→ 400"; REFUSALS has more.
    requirements = {f"R{number}" for number in (*range(6, 14), 15, 17, 23, 25, 28, 34)}
    assert requirements <= REFUSALS.keys()


@pytest.mark.parametrize("route", SHAPES)
def test_invalid_parameter_is_refused(route: str, subtests: pytest.Subtests) -> None:
    # R6-R17, R19, R23, R25, R28, R34: the name of each case begins with its own.
    cases = [refusal for refusal in refusals() if refusal.route == route]
    assert len(cases) > 100
    for refusal in cases:
        with subtests.test(str(refusal)):
            check_refusal(refusal)


def check_refusal(refusal: Refusal) -> None:
    """Check the answer to a call with an invalid parameter."""
    with pytest.raises(InvalidRequest) as raised:
        adapt_call(create_call(refusal.dialect, refusal.route, refusal.body).parsed, UNABLE)
    response = error_info(raised.value)
    message, param = refusal.message, refusal.param
    assert response.openai_error() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": 400,
        }
    }
    # R53
    named = {"code": "invalid_request", "message": message, "param": param}
    assert response.named_error() == {"error": named}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("model", "quoted"), [("gpt-4", '"gpt-4"'), ("", '""'), ("\ud800", '"\\ud800"')]
)
def test_unknown_model_is_not_found(dialect: Dialect, shape: str, model: str, quoted: str) -> None:
    # R7
    with pytest.raises(NotFound) as raised:
        create_call(dialect, shape, {"model": model})
    assert error_info(raised.value).openai_error()["error"] == {
        "message": f"the model {quoted} does not exist, there is: tiny",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_model_is_optional_unless_the_dialect_requires_it(shape: str) -> None:
    # R7
    for dialect in (OPENAI, ORACLE):
        assert create_call(dialect, shape, {"model": None}).parameters.n == 1
    with pytest.raises(InvalidRequest) as refused:
        create_call(OVMS, shape, {"model": None})
    assert (refused.value.param, refused.value.message) == ("model", "model must be given")


# The largest and the least of each: R8-R13, R15.
ALLOWED: dict[str, list[dict[str, Any]]] = {
    "both": [
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "seed": -(2**63), "n": 1},
        {"temperature": 2, "top_k": MAX_INT32, "min_p": 1, "seed": 2**63 - 1},
        {"repetition_penalty": 0.01, "frequency_penalty": -2, "presence_penalty": -2},
        {"repetition_penalty": 100, "frequency_penalty": 2, "presence_penalty": 2},
        {"stop": []},
        {"stop": ["a"] * 4, "include_stop_str_in_output": True, "ignore_eos": False},
        {"max_tokens": 1, "max_completion_tokens": MAX_INT32},
        {"stream": True, "stream_options": None},
        # R66: any other member, and null.
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True, "other": {}}},
        {"stream": True, "stream_options": {"include_usage": None}},
        {"max_tokens": 16.0, "top_k": 5.0, "seed": -1.0, "n": 1.0, "stop_token_ids": [2.0]},
        {"unknown": {"nobody": "knows"}},
    ],
    "completions": [
        {"max_tokens": 0, "echo": True},
        {"n": 20, "best_of": 20, "length_penalty": -1.5},
        {"logprobs": 1},
        {"prompt": [0, 2**31 - 1]},
        {"prompt": ["a"], "stream": True},
    ],
    "chat": [{"logprobs": True, "top_logprobs": 20}, {"logprobs": False}, {"n": 128}],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_allowed_parameters(dialect: Dialect, shape: str) -> None:
    for body in ALLOWED["both"] + ALLOWED[shape]:
        assert create_call(dialect, shape, body).parsed.warnings == ()


def test_generation_count_of_a_call_is_limited() -> None:
    call = create_call(OPENAI, "completions", {"prompt": ["x"] * 16, "n": 128})
    assert call.request_count == MAX_GENERATIONS


# R16: parameters of one route are ignored by the other.
IGNORED: dict[str, dict[str, Any]] = {
    "both": {
        "diversity_penalty": 1.0,
        "use_beam_search": True,
        "early_stopping": True,
        "detokenize": False,
        "spaces_between_special_tokens": False,
        "logits_processors": ["x"],
    },
    "completions": {"top_logprobs": 2},
    "chat": {"best_of": 2, "echo": True, "length_penalty": 2.0, "suffix": "x"},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_each_ignored_parameter_causes_a_warning(dialect: Dialect, shape: str) -> None:
    # R16
    body = IGNORED["both"] | IGNORED[shape]
    assert create_call(dialect, shape, body).parsed.warnings == tuple(
        f"{name} is not supported and was ignored" for name in body
    )
    assert create_call(dialect, shape, dict.fromkeys(body)).parsed.warnings == ()


# False is a request, because vLLM's default is true.
@pytest.mark.parametrize(
    "name",
    [
        "add_generation_prompt",
        "add_special_tokens",
        "detokenize",
        "spaces_between_special_tokens",
    ],
)
def test_false_of_an_unsupported_parameter_causes_a_warning(name: str) -> None:
    # R16
    for shape in SHAPES:
        for value, warns in ((False, True), (True, False), (None, False)):
            warnings = create_call(OPENAI, shape, {name: value}).parsed.warnings
            assert warnings == ((f"{name} is not supported and was ignored",) if warns else ())
    assert create_call(OPENAI, "chat", {"use_beam_search": False}).parsed.warnings == ()


def test_chat_only_parameters_of_a_completion_cause_warnings() -> None:
    # R16
    body = {
        "chat_template_kwargs": {"a": 1},
        "enable_thinking": True,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [{}],
    }
    assert create_call(OPENAI, "completions", body).parsed.warnings == tuple(
        f"{name} is only for chats and was ignored" for name in body
    )
    for unset in (None, False):
        assert create_call(OPENAI, "completions", dict.fromkeys(body, unset)).parsed.warnings == ()


@pytest.mark.parametrize("shape", SHAPES)
def test_draft_parameters_cause_warnings_unless_the_dialect_refuses(shape: str) -> None:
    # R17
    body = {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.4}
    able = replace(UNABLE, chat_template=True)
    for dialect in (OPENAI, ORACLE):
        call = adapt_call(create_call(dialect, shape, body).parsed, able)
        assert able.check(call.prompts[0], call.parameters.sampling) == tuple(
            f"{name} is not supported by the tiny engine and was ignored" for name in body
        )
    adapt_call(create_call(OVMS, shape, dict.fromkeys(body)).parsed, able)
    call = create_call(OVMS, shape, {"num_assistant_tokens": 5}).parsed
    adapt_call(call, replace(able, draft=True))

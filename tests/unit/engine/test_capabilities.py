"""R16: unsupported parameters give a warning or are refused, in one place."""

from __future__ import annotations

from typing import Any

import pytest

from engine.capabilities import Capabilities, thinks_before_grammar
from engine.errors import UnsupportedParameter
from engine.request import Chat, Message, SamplingParams

UNABLE = Capabilities(
    backend="rkllm",
    model="tiny",
    context_length=512,
    penalties=False,
    min_p=False,
    seed=False,
    ignore_eos=False,
)
ABLE = Capabilities(
    backend="llamacpp",
    model="tiny",
    context_length=512,
    max_logprobs=5,
    logit_bias=True,
    grammar=True,
    json_schema=True,
    token_prompts=True,
    chat_template=True,
    draft=True,
    prompt_truncation=True,
    special_tokens=True,
)
WARNED: dict[str, Any] = {
    "seed": 0,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.5,
    "logprobs": 0,
    "logit_bias": {5: -100.0},
    "allowed_token_ids": (5,),
    "grammar": 'root ::= "a"',
    "ignore_eos": True,
    "truncate_prompt_tokens": 5,
    "skip_special_tokens": False,
}


@pytest.mark.parametrize("name", WARNED)
def test_ignored_parameter_gets_one_warning_with_its_name(name: str) -> None:
    sampling = SamplingParams(**{name: WARNED[name]})
    (warning,) = UNABLE.check("hi", sampling)
    assert warning == f"{name} is not supported by the rkllm engine and was ignored"
    assert ABLE.check("hi", sampling) == ()


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (SamplingParams(draft_tokens=1), "num_assistant_tokens"),
        (SamplingParams(draft_threshold=0.0), "assistant_confidence_threshold"),
    ],
)
def test_warnings_about_drafting_use_the_public_names(sampling: SamplingParams, name: str) -> None:
    # R17
    (warning,) = UNABLE.check("hi", sampling)
    assert warning == f"{name} is not supported by the rkllm engine and was ignored"
    assert ABLE.check("hi", sampling) == ()


def test_several_ignored_parameters_get_one_warning_each() -> None:
    warnings = UNABLE.check("hi", SamplingParams(**WARNED))
    assert [warning.split()[0] for warning in warnings] == list(WARNED)


def test_defaults_need_no_capability() -> None:
    assert UNABLE.check("hi", SamplingParams()) == ()


def test_token_ids_are_refused_where_the_engine_takes_text() -> None:
    with pytest.raises(UnsupportedParameter, match="takes text, not token ids") as caught:
        UNABLE.check((1, 2), SamplingParams())
    assert caught.value.details == {"param": "prompt"}
    assert ABLE.check((1, 2), SamplingParams()) == ()


def test_chat_is_refused_without_a_template() -> None:
    chat = Chat((Message("user", "hi"),))
    with pytest.raises(UnsupportedParameter, match="tiny has no chat template") as caught:
        UNABLE.check(chat, SamplingParams())
    assert caught.value.details == {"param": "messages"}
    assert ABLE.check(chat, SamplingParams()) == ()


def test_grammar_and_schema_together_are_refused() -> None:
    both = SamplingParams(grammar='root ::= "a"', json_schema={})
    with pytest.raises(UnsupportedParameter, match=r"grammar: .* or to json_schema") as caught:
        ABLE.check("hi", both)
    assert caught.value.details == {"param": "grammar"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"variables": {}}, False),
        ({"variables": {"enable_thinking": False}}, False),
        ({"marks": ()}, False),
        ({"continues": True}, False),
        ({"schema": None}, False),
    ],
)
def test_model_may_think_before_a_grammar_if_the_client_asks_for_it(
    change: dict[str, Any], expected: bool
) -> None:
    able = Capabilities(
        backend="b", model="m", context_length=9, answer_marks=change.get("marks", ("<think>",))
    )
    chat = Chat(
        (Message("user", "a"),),
        change.get("variables", {"enable_thinking": True}),
        continues_last=change.get("continues", False),
    )
    sampling = SamplingParams(json_schema=change.get("schema", {"type": "object"}))
    assert thinks_before_grammar(chat, sampling, able) is expected


def test_fixed_parameter_that_the_client_did_not_send_causes_no_warning() -> None:
    fixed = Capabilities(
        backend="rkllm",
        model="tiny",
        context_length=512,
        fixed_sampling={"temperature": 0.7, "top_k": 50},
    )
    sent = SamplingParams(temperature=1.0, top_k=-1)
    assert [warning.split()[0] for warning in fixed.check("hi", sent)] == ["temperature", "top_k"]
    unset = SamplingParams(temperature=1.0, top_k=-1, unset=frozenset({"top_k"}))
    assert [warning.split()[0] for warning in fixed.check("hi", unset)] == ["temperature"]
    # The process of an engine leaves these parameters to its server.
    assert SamplingParams.from_wire(unset.to_wire()).unset == unset.unset

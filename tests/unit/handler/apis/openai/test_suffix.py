"""`suffix`: filled in by models with infill tokens, ignored with a warning by others (R16)."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.openai.service import OpenAIService
from tests.unit.handler.apis.openai.calls import COMPLETIONS, Complete, complete, complete_streamed
from tests.unit.handler.conftest import PipelineFactory

ABLE = {"infill": True}
WAYS = pytest.mark.parametrize(
    "complete_call", [complete, complete_streamed], ids=["whole", "streamed"]
)


@WAYS
async def test_model_gets_the_infill_prompt(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # The scripted engine says its prompt back.
    service = OpenAIService(pipeline_of(capabilities=ABLE))
    response = await complete_call(
        service, COMPLETIONS, {"prompt": "def f(): ", "suffix": "return x"}
    )
    assert response.choices[0].text == "def f(): <gap>return x"
    assert response.warnings == []


@WAYS
async def test_model_without_infill_gets_the_prompt_with_a_warning(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R16
    service = OpenAIService(pipeline_of())
    response = await complete_call(
        service, COMPLETIONS, {"prompt": "def f(): ", "suffix": "return x"}
    )
    assert response.choices[0].text == "def f(): "
    assert response.warnings == ["suffix is not supported by scripted and was ignored"]


@pytest.mark.parametrize("suffix", [None, ""])
async def test_empty_suffix_is_ignored(pipeline_of: PipelineFactory, suffix: Any) -> None:
    for capabilities in ({}, ABLE):
        service = OpenAIService(pipeline_of(capabilities=capabilities))
        response = await complete(service, COMPLETIONS, {"prompt": "a b", "suffix": suffix})
        assert (response.choices[0].text, response.warnings) == ("a b", [])


@WAYS
async def test_suffix_applies_to_each_prompt_and_candidate(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R5, R14
    service = OpenAIService(pipeline_of(capabilities=ABLE))
    # A stream has one prompt.
    prompts = ["a ", "b "] if complete_call is complete else ["a "]
    body = {"prompt": prompts, "suffix": " z", "n": 2, "echo": True}
    response = await complete_call(service, COMPLETIONS, body)
    assert [response.choices[index].text for index in range(2 * len(prompts))] == [
        f"{prompt}{prompt}<gap> z" for prompt in prompts for _ in range(2)
    ]


async def test_suffix_applies_to_token_id_prompts(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of(capabilities=ABLE))
    response = await complete(service, COMPLETIONS, {"prompt": [5, 7], "suffix": " z"})
    assert response.choices[0].text == "5 7<gap> z"


async def test_suffix_of_a_chat_causes_a_warning(pipeline_of: PipelineFactory) -> None:
    # R16
    service = OpenAIService(pipeline_of({"pieces": ["yes"]}, capabilities=ABLE))
    body = {"messages": [{"role": "user", "content": "hi"}], "suffix": "z"}
    response = await complete(service, "/v1/chat/completions", body)
    assert response.warnings == ["suffix is not supported and was ignored"]

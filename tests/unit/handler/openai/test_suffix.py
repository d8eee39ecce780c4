"""`suffix`: filled in where the model can do it, warned about where not (R16)."""

from __future__ import annotations

from typing import Any

import pytest

from handler.openai.service import OpenAIService
from tests.unit.handler.conftest import PipelineFactory
from tests.unit.handler.openai.calls import COMPLETIONS, Tell, tell_streamed, tell_whole

ABLE = {"infill": True}
WAYS = pytest.mark.parametrize("tell", [tell_whole, tell_streamed], ids=["whole", "streamed"])


@WAYS
async def test_gap_is_what_the_model_is_given(pipeline_of: PipelineFactory, tell: Tell) -> None:
    # The scripted engine says its prompt back.
    service = OpenAIService(pipeline_of(capabilities=ABLE))
    told = await tell(service, COMPLETIONS, {"prompt": "def f(): ", "suffix": "return x"})
    assert told.choices[0].text == "def f(): <gap>return x"
    assert told.warnings == []


@WAYS
async def test_model_that_cannot_is_given_the_prompt_alone_and_it_is_said(
    pipeline_of: PipelineFactory, tell: Tell
) -> None:
    # R16
    service = OpenAIService(pipeline_of())
    told = await tell(service, COMPLETIONS, {"prompt": "def f(): ", "suffix": "return x"})
    assert told.choices[0].text == "def f(): "
    assert told.warnings == ["suffix is not supported by scripted and was ignored"]


@pytest.mark.parametrize("suffix", [None, ""])
async def test_no_suffix_is_none(pipeline_of: PipelineFactory, suffix: Any) -> None:
    for capabilities in ({}, ABLE):
        service = OpenAIService(pipeline_of(capabilities=capabilities))
        told = await tell_whole(service, COMPLETIONS, {"prompt": "a b", "suffix": suffix})
        assert (told.choices[0].text, told.warnings) == ("a b", [])


@WAYS
async def test_each_prompt_has_it_with_its_own_candidates(
    pipeline_of: PipelineFactory, tell: Tell
) -> None:
    # R5, R14
    service = OpenAIService(pipeline_of(capabilities=ABLE), stream_multi_prompt=True)
    body = {"prompt": ["a ", "b "], "suffix": " z", "n": 2, "echo": True}
    told = await tell(service, COMPLETIONS, body)
    assert [told.choices[index].text for index in range(4)] == [
        "a a <gap> z",
        "a a <gap> z",
        "b b <gap> z",
        "b b <gap> z",
    ]


async def test_token_ids_are_filled_in_after_as_well(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of(capabilities=ABLE))
    told = await tell_whole(service, COMPLETIONS, {"prompt": [5, 7], "suffix": " z"})
    assert told.choices[0].text == "5 7<gap> z"


async def test_chats_have_none(pipeline_of: PipelineFactory) -> None:
    # R16
    service = OpenAIService(pipeline_of({"pieces": ["yes"]}, capabilities=ABLE))
    body = {"messages": [{"role": "user", "content": "hi"}], "suffix": "z"}
    told = await tell_whole(service, "/v1/chat/completions", body)
    assert told.warnings == ["suffix is not supported and was ignored"]

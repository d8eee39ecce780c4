"""The log-probabilities of a prompt in vLLM's form."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.openai.service import OpenAIService
from tests.unit.handler.apis.openai.calls import CHAT, COMPLETIONS, complete_streamed
from tests.unit.handler.conftest import PipelineFactory

MESSAGES = [{"role": "user", "content": "one two"}]


async def answer(service: OpenAIService, route: str, body: dict[str, Any]) -> dict[str, Any]:
    return dict(await service.complete(service.parse_call(route, body)))


async def test_each_choice_of_a_completion_has_those_of_its_prompt(
    pipeline_of: PipelineFactory,
) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["x"]}))
    body = {"prompt": [[5, 6, 7], [8]], "n": 2, "prompt_logprobs": 1}
    choices = (await answer(service, COMPLETIONS, body))["choices"]
    first = [
        None,
        {"6": {"logprob": -1.0, "rank": 1, "decoded_token": " 6"}},
        {"7": {"logprob": -0.5, "rank": 1, "decoded_token": " 7"}},
    ]
    assert [each["prompt_logprobs"] for each in choices] == [first, first, [None], [None]]


async def test_chat_has_prompt_logprobs_outside_its_choices(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["x"]}))
    body = {"messages": MESSAGES, "prompt_logprobs": 0}
    response = await answer(service, CHAT, body)
    # The rendered chat: "user: one two", "assistant:".
    none, *others = response["prompt_logprobs"]
    assert none is None
    assert others
    assert all(len(each) == 1 for each in others)
    assert "prompt_logprobs" not in response["choices"][0]
    assert "prompt_logprobs" not in await answer(service, CHAT, {"messages": MESSAGES})


async def test_truncated_prompt_has_those_of_its_end(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(
        pipeline_of({"pieces": ["x"]}, capabilities={"prompt_truncation": True})
    )
    body = {"prompt": [5, 6, 7], "prompt_logprobs": 0, "truncate_prompt_tokens": 2}
    [choice] = (await answer(service, COMPLETIONS, body))["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"7": {"logprob": -1.0, "rank": 1, "decoded_token": " 7"}},
    ]


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_engine_without_them_warns(pipeline_of: PipelineFactory, route: str) -> None:
    # R16
    service = OpenAIService(pipeline_of({"pieces": ["x"]}, capabilities={"prompt_logprobs": False}))
    prompt = {"messages": MESSAGES} if route == CHAT else {"prompt": "one two"}
    response = await answer(service, route, prompt | {"prompt_logprobs": 1})
    assert response["warnings"] == [
        "prompt_logprobs was ignored, because the scripted engine returns none"
    ]
    assert "prompt_logprobs" not in response
    assert "prompt_logprobs" not in response["choices"][0]


async def test_stream_warns(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["x"]}))
    response = await complete_streamed(
        service, COMPLETIONS, {"prompt": "a b", "prompt_logprobs": 1}
    )
    assert response.warnings == ["prompt_logprobs was ignored, because the answer is streamed"]

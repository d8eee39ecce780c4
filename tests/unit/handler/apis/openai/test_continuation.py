"""Answers that continue the last message of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UnsupportedParameter
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest
from tests.unit.handler.apis.openai.calls import CHAT, Complete, complete, complete_streamed
from tests.unit.handler.conftest import PipelineFactory

USER = {"role": "user", "content": "Tell me."}
WAYS = [pytest.param(complete, id="whole"), pytest.param(complete_streamed, id="streamed")]


def body_of(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*messages], "continue_final_message": True}


@pytest.mark.parametrize("complete_call", WAYS)
async def test_answer_continues_the_last_message(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    answers = [{"when": "user: Tell me.\nassistant:Once$", "pieces": [" upon"]}]
    service = OpenAIService(pipeline_of(*answers))
    body = body_of(USER, {"role": "assistant", "content": "Once"})
    response = await complete_call(service, CHAT, body)
    assert response.choices[0].text == " upon"
    assert not response.warnings


@pytest.mark.parametrize("complete_call", WAYS)
async def test_answer_continues_a_thought(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    service = OpenAIService(pipeline_of({"pieces": [" yes", "</think>", "Oslo"]}))
    body = body_of(USER, {"role": "assistant", "content": "<think>Hm,"})
    response = await complete_call(service, CHAT, body)
    assert response.choices[0].text == "Oslo"


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "assistant", "content": "Once"}],
        [USER, {"role": "assistant", "content": ""}],
        [
            USER,
            {
                "role": "assistant",
                "content": "a",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
            },
        ],
    ],
)
async def test_other_chats_are_refused(
    pipeline_of: PipelineFactory, messages: list[dict[str, Any]]
) -> None:
    service = OpenAIService(pipeline_of())
    with pytest.raises(InvalidRequest, match=r"^continue_final_message needs an assistant's"):
        service.parse_call("/v1/chat/completions", body_of(*messages))


async def test_engine_without_a_template_refuses_it(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of(capabilities={"turns": False}))
    call = service.parse_call(
        "/v1/chat/completions", body_of(USER, {"role": "assistant", "content": "Once"})
    )
    with pytest.raises(UnsupportedParameter, match=r"^continue_final_message: there is no chat"):
        await service.complete(call)

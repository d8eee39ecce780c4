"""The parameters of a draft model, with and without a draft model (R17)."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest, error_info
from tests.unit.handler.apis.openai.calls import (
    CHAT,
    COMPLETIONS,
    complete,
    complete_streamed,
    with_stream,
)
from tests.unit.handler.conftest import PipelineFactory

BODIES: list[Any] = [
    pytest.param(COMPLETIONS, {"model": "scripted", "prompt": "hi"}, id="completions"),
    pytest.param(
        CHAT, {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}, id="chat"
    ),
]
NAMES = {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.0}
ANSWER = {"pieces": ["yes"]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("route", "body"), BODIES)
async def test_ovms_refuses_draft_parameters_without_a_draft_model(
    pipeline_of: PipelineFactory, route: str, body: dict[str, Any], name: str
) -> None:
    service = OpenAIService(pipeline_of(ANSWER))
    call = service.parse_call(route, {**body, name: NAMES[name]}, OVMS)
    with pytest.raises(InvalidRequest) as full:
        await service.complete(call)
    with pytest.raises(InvalidRequest) as opened:
        await service.open_stream(
            service.parse_call(route, with_stream({**body, name: NAMES[name]}), OVMS)
        )
    for raised in (full, opened):
        assert error_info(raised.value).openai_error()["error"] == {
            "message": f"{name} needs a draft model, and none is loaded",
            "type": "invalid_request_error",
            "param": name,
            "code": 400,
        }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", [OPENAI, ORACLE], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(("route", "body"), BODIES)
async def test_other_dialects_warn_about_draft_parameters(
    pipeline_of: PipelineFactory, route: str, body: dict[str, Any], dialect: Dialect, name: str
) -> None:
    # R16
    service = OpenAIService(pipeline_of(ANSWER))
    for complete_call in (complete, complete_streamed):
        response = await complete_call(service, route, {**body, name: NAMES[name]}, dialect)
        assert response.warnings == [
            f"{name} is not supported by the scripted engine and was ignored"
        ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", [OPENAI, ORACLE, OVMS], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(("route", "body"), BODIES)
async def test_draft_parameters_are_passed_to_a_draft_model(
    pipeline_of: PipelineFactory, route: str, body: dict[str, Any], dialect: Dialect, name: str
) -> None:
    service = OpenAIService(pipeline_of(ANSWER, capabilities={"draft": True}))
    for complete_call in (complete, complete_streamed):
        response = await complete_call(service, route, {**body, name: NAMES[name]}, dialect)
        assert response.warnings == []
    sampling = service.parse_call(route, {**body, name: NAMES[name]}, dialect).parameters.sampling
    parameters = {
        "num_assistant_tokens": sampling.draft_tokens,
        "assistant_confidence_threshold": sampling.draft_threshold,
    }
    assert parameters == dict.fromkeys(NAMES, None) | {name: NAMES[name]}

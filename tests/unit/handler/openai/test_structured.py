"""`response_format`: refused values, and its effect with and without a grammar (R39)."""

from __future__ import annotations

from typing import Any

import pytest

from handler.errors import InvalidRequest
from handler.openai.service import OpenAIService
from handler.openai.structured import MAX_SCHEMA_BYTES, read_response_format
from tests.unit.handler.conftest import PipelineFactory
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

SCHEMA = {"type": "object", "required": ["a"]}


def of(schema: Any) -> dict[str, Any]:
    named = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def test_read_response_format_returns_the_schema() -> None:
    assert read_response_format({}) is None
    assert read_response_format({"response_format": {"type": "text"}}) is None
    assert read_response_format({"response_format": {"type": "json_object"}}) == {"type": "object"}
    assert read_response_format(of(SCHEMA)) == SCHEMA


@pytest.mark.parametrize(
    "given",
    ["json", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "schema": {}}],
)
def test_other_formats_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="response_format") as raised:
        read_response_format({"response_format": given})
    assert raised.value.param == "response_format"


def test_endless_schema_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        read_response_format(of({"enum": ["x" * MAX_SCHEMA_BYTES]}))
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest, match="levels"):
        read_response_format(of(deep))


@pytest.mark.parametrize(("said", "valid"), [('{"a": 1}', True), ('{"b": 1}', False)])
async def test_answer_is_checked_without_a_grammar(
    said: str, valid: bool, pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(
        pipeline_of({"pieces": [said]}, validator=RulesValidator.from_file(DEFAULT_RULES))
    )
    body = {"prompt": "hi", **of(SCHEMA)}
    full = await service.complete(service.parse_call("/v1/completions", body))
    assert full["choices"][0]["text"] == said
    assert full["validation"]["valid"] is valid
    assert ("regenerated" in full) is not valid
    assert full["warnings"]


async def test_engine_with_a_grammar_gets_the_schema(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["{}"]}, capabilities={"json_schema": True}))
    call = service.parse_call("/v1/completions", {"prompt": "hi", **of(SCHEMA)})
    full = await service.complete(call)
    assert call.request.generation.sampling.json_schema == SCHEMA
    assert "validation" not in full
    assert "warnings" not in full

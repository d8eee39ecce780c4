"""`/v1/score`: every form of both sides, the names of vLLM, and all that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from common.json_object import JsonObject
from handler.apis.openai.relevance import MAX_TEXTS
from handler.apis.openai.service import SCORE, OpenAIService
from handler.errors import InvalidRequest, error_info
from tests.unit.handler.conftest import JobHandlerFactory, PipelineFactory

# The scripted score is the share of the first text's words that the second text has.
RANKING = {"rerank": True}
TEXT = "must be a non-empty string or an object with such a string as its text"
SIDE = f"{TEXT}, or an array of up to 2048 of them, got"
ARRAY = "must be an array of up to 2048 texts, got"


@pytest.fixture
def service(pipeline_of: PipelineFactory) -> OpenAIService:
    return OpenAIService(pipeline_of(capabilities=RANKING))


def scores(answer: JsonObject) -> list[float]:
    return [each["score"] for each in answer["data"]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b", "a", [0.5]),
        ("a b", ["a", "b a", "c"], [0.5, 1, 0]),
        (["a b"], ["a", {"text": "b a"}], [0.5, 1]),
        (["a b", "c"], ["a", "c"], [0.5, 1]),
        ({"text": "a"}, {"text": "a"}, [1]),
    ],
)
async def test_each_form_is_scored_in_order(
    service: OpenAIService, first: Any, second: Any, expected: list[float]
) -> None:
    answer = await service.create_scores(SCORE, {"text_1": first, "text_2": second})
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert answer["id"].startswith("score-")
    assert (answer["object"], answer["model"]) == ("list", "scripted")
    assert scores(answer) == expected
    for index, each in enumerate(answer["data"]):
        assert (each["index"], each["object"]) == (index, "score")


@pytest.mark.parametrize(
    ("first", "second"),
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "items")],
)
async def test_newer_names_are_read(service: OpenAIService, first: str, second: str) -> None:
    answer = await service.create_scores(SCORE, {first: "a b", second: ["a"]})
    assert scores(answer) == [0.5]
    assert "warnings" not in answer


async def test_second_name_of_a_side_is_ignored_with_a_warning(service: OpenAIService) -> None:
    body = {"text_1": "a", "queries": "b", "text_2": "a", "top_n": 1}
    answer = await service.create_scores(SCORE, body)
    assert scores(answer) == [1]
    assert answer["warnings"] == [
        "queries was ignored, because text_1 has the texts",
        "top_n is for /v1/rerank and was ignored",
    ]


async def test_score_of_embeddings_is_symmetric(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    body = {"text_1": ["a red cat", "a red dog"], "text_2": ["a red dog", "a red cat"]}
    answer = await service.create_scores(SCORE, body)
    assert scores(answer)[0] == scores(answer)[1]
    assert -1 <= scores(answer)[0] < 1
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, f"text_1 {SIDE} null", "text_1"),
    ({"text_2": "a"}, f"text_1 {SIDE} null", "text_1"),
    ({"text_1": "a"}, f"text_2 {SIDE} null", "text_2"),
    ({"queries": 5, "documents": "a"}, f"queries {SIDE} 5", "queries"),
    ({"text_1": "a", "text_2": ["b", ""]}, f'text_2[1] {TEXT}, got ""', "text_2[1]"),
    (
        {"text_1": [], "text_2": "a"},
        f"text_1 {ARRAY} []",
        "text_1",
    ),
    (
        {"text_1": "a", "items": ["b"] * (MAX_TEXTS + 1)},
        f"items {ARRAY} 2049",
        "items",
    ),
    (
        {"text_1": ["a", "b"], "text_2": ["a"]},
        "text_2 must have as many texts as text_1 has, 2, got 1",
        "text_2",
    ),
    ({"text_1": "a", "text_2": "b", "user": 5}, "user must be a string, got 5", "user"),
]


@pytest.mark.parametrize(("body", "message", "param"), REFUSED)
async def test_invalid_body_is_refused(
    service: OpenAIService, body: dict[str, Any], message: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await service.create_scores(SCORE, body)
    error = error_info(raised.value).openai_error()["error"]
    assert (error["message"], error["param"]) == (message, param)


async def test_job_output_is_the_response(job_handler_of: JobHandlerFactory) -> None:
    # R44
    jobs = job_handler_of()
    body = {"text_1": "a", "text_2": ["a", "b"]}
    job = {"id": "1", "input": {"openai_route": SCORE, "openai_input": body}}
    jobs.check(job)
    assert len(scores(await jobs.run(job))) == 2
    job = {"id": "2", "input": {"openai_route": SCORE, "openai_input": {}}}
    with pytest.raises(InvalidRequest, match=r"^text_1 must be a non-empty string"):
        jobs.check(job)

"""`/v1/rerank`: the order of the results, both kinds of models, and all that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Priority
from engine.errors import EngineError
from handler.apis.openai.dialect import OVMS
from handler.apis.openai.relevance import MAX_TEXTS
from handler.apis.openai.service import RERANK, OpenAIService
from handler.errors import HandlerError, InvalidRequest, NotFound, error_info
from tests.unit.handler.conftest import JobHandlerFactory, PipelineFactory

DOCUMENTS = ["so far away", "a red cat", {"text": "a red dog"}]
BODY = {"query": "a red cat", "documents": DOCUMENTS}
TEXT = "must be a non-empty string or an object with such a string as its text, got"
TEXTS = "documents must be an array of up to 2048 texts, got"
# With a reranking model, the scripted score is the share of the query's words.
RANKING = {"rerank": True, "embeddings": False}


async def test_documents_are_sorted_by_cosine_of_embeddings(
    pipeline_of: PipelineFactory,
) -> None:
    service = OpenAIService(pipeline_of())
    answer = await service.create_scores(RERANK, BODY)
    assert list(answer) == ["id", "object", "model", "results", "usage"]
    assert answer["id"].startswith("rerank-")
    assert (answer["object"], answer["model"]) == ("list", "scripted")
    assert [each["index"] for each in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)
    assert [each["document"]["text"] for each in answer["results"]] == [
        "a red cat",
        "a red dog",
        "so far away",
    ]
    # The text that is both query and document is computed once.
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    vectors = await service.create_embeddings({"input": ["a red cat", "a red dog"]})
    cat, dog = [each["embedding"] for each in vectors["data"]]
    cosine = sum(left * right for left, right in zip(cat, dog, strict=True))
    assert answer["results"][1]["relevance_score"] == pytest.approx(cosine)


async def test_documents_are_sorted_by_a_reranking_model(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of(capabilities=RANKING))
    answer = await service.create_scores(RERANK, BODY | {"return_documents": False})
    assert answer["results"] == [
        {"index": 1, "relevance_score": 1.0},
        {"index": 2, "relevance_score": pytest.approx(2 / 3)},
        {"index": 0, "relevance_score": 0.0},
    ]
    assert answer["usage"] == {"prompt_tokens": 18, "total_tokens": 18}


@pytest.mark.parametrize(("top_n", "count"), [(None, 3), (0, 3), (1, 1), (2.0, 2), (9, 3)])
async def test_top_n_limits_the_results(
    pipeline_of: PipelineFactory, top_n: float | None, count: int
) -> None:
    service = OpenAIService(pipeline_of())
    answer = await service.create_scores(RERANK, BODY | {"top_n": top_n})
    assert [each["index"] for each in answer["results"]] == [1, 2, 0][:count]


async def test_equal_documents_keep_their_order(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    body = {"query": "a", "documents": ["b"] * MAX_TEXTS, "model": "scripted", "user": "me"}
    answer = await service.create_scores(RERANK, body)
    assert [each["index"] for each in answer["results"]] == list(range(MAX_TEXTS))
    assert "warnings" not in answer


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, f"query {TEXT} null", "query"),
    ({"query": "", "documents": ["a"]}, f'query {TEXT} ""', "query"),
    ({"query": ["a"], "documents": ["a"]}, f'query {TEXT} ["a"]', "query"),
    ({"query": "a"}, f"{TEXTS} null", "documents"),
    ({"query": "a", "documents": "b"}, f'{TEXTS} "b"', "documents"),
    ({"query": "a", "documents": []}, f"{TEXTS} []", "documents"),
    ({"query": "a", "documents": ["b"] * 2049}, f"{TEXTS} 2049", "documents"),
    ({"query": "a", "documents": ["b", 5]}, f"documents[1] {TEXT} 5", "documents[1]"),
    (
        {"query": "a", "documents": [{"text": ""}]},
        f'documents[0] {TEXT} {{"text":""}}',
        "documents[0]",
    ),
    (
        {"query": "a", "documents": ["\ud800"]},
        "documents[0] must be Unicode text, got half a surrogate pair at character 0",
        "documents[0]",
    ),
    (
        BODY | {"top_n": -1},
        "top_n must be a whole number from 0 (for all) to 4294967295, got -1",
        "top_n",
    ),
    (
        BODY | {"return_documents": "yes"},
        'return_documents must be true or false, got "yes"',
        "return_documents",
    ),
    (BODY | {"model": 5}, "model must be a string, got 5", "model"),
]


@pytest.mark.parametrize(("body", "message", "param"), REFUSED)
async def test_invalid_body_is_refused(
    pipeline_of: PipelineFactory, body: dict[str, Any], message: str, param: str
) -> None:
    service = OpenAIService(pipeline_of())
    for call in (service.create_scores(RERANK, body), _check(service, body)):
        with pytest.raises(InvalidRequest) as raised:
            await call
        error = error_info(raised.value).openai_error()["error"]
        assert (error["message"], error["code"], error["param"]) == (message, 400, param)


async def _check(service: OpenAIService, body: dict[str, Any]) -> None:
    service.check_call(RERANK, body)


async def test_model_name_is_checked(pipeline_of: PipelineFactory) -> None:
    # R7
    pipeline = pipeline_of()
    pipeline.adapters = ("french",)
    service = OpenAIService(pipeline)
    with pytest.raises(NotFound, match="there is: scripted"):
        await service.create_scores(RERANK, BODY | {"model": "rerank-3"})
    with pytest.raises(InvalidRequest, match="which adapters do not make, got french"):
        await service.create_scores(RERANK, BODY | {"model": "french"})
    with pytest.raises(InvalidRequest, match="model must be given"):
        await service.create_scores(RERANK, BODY, OVMS)


async def test_keys_without_effect_have_warnings(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    body = BODY | {"temperature": 0.5, "texts": ["a"], "rank_fields": ["a"], "topn": 1}
    assert (await service.create_scores(RERANK, body))["warnings"] == [
        "temperature has no effect on scores and was ignored",
        "texts was ignored: use documents",
        "rank_fields is not supported and was ignored",
        "topn is unknown and was ignored: did you mean top_n?",
    ]


async def refused(service: OpenAIService, body: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises((EngineError, HandlerError)) as raised:
        await service.create_scores(RERANK, body)
    error: dict[str, Any] = error_info(raised.value).openai_error()["error"]
    return error


@pytest.mark.parametrize("capabilities", [{}, RANKING], ids=["embeddings", "reranking"])
async def test_text_that_is_too_long_is_named(
    pipeline_of: PipelineFactory, capabilities: dict[str, Any]
) -> None:
    # R54, R64
    service = OpenAIService(pipeline_of(context_length=4, capabilities=capabilities))
    error = await refused(service, BODY | {"documents": ["a", "one two three four"]})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    assert "your documents[1] resulted in 4 tokens" in error["message"]
    error = await refused(service, {"query": "x" * 5_000, "documents": ["a"]})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "query")


async def test_model_without_scores_is_refused(pipeline_of: PipelineFactory) -> None:
    error = await refused(OpenAIService(pipeline_of(capabilities={"embeddings": False})), BODY)
    assert error["message"] == (
        "query: scripted is no reranking model, and the scripted engine has no embeddings"
    )
    assert (error["code"], error["param"]) == (400, "query")


@pytest.mark.parametrize("capabilities", [{}, RANKING], ids=["embeddings", "reranking"])
async def test_reserved_slot_is_used(
    pipeline_of: PipelineFactory, capabilities: dict[str, Any]
) -> None:
    pipeline = pipeline_of(slots=1, capabilities=capabilities)
    slot = await pipeline.engine.reserve(Priority.JOB)
    answer = await OpenAIService(pipeline).answer_without_generation(RERANK, BODY, slot=slot)
    assert answer["results"]
    assert not slot.take()
    assert pipeline.engine.running == 0


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_job_output_is_the_response(
    job_handler_of: JobHandlerFactory, is_streamed: bool
) -> None:
    # R44
    jobs = job_handler_of()
    job = {"id": "1", "input": {"openai_route": RERANK, "openai_input": BODY}}
    jobs.check(job)
    if is_streamed:
        [output] = [each async for each in jobs.stream(job)]
    else:
        output = await jobs.run(job)
    assert [each["index"] for each in output["results"]] == [1, 2, 0]

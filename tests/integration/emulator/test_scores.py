"""Reranking and scores over HTTP: each family of routes, and through the queue."""

from __future__ import annotations

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve

RERANK = {"model": "tiny", "query": "a red cat", "documents": ["so far away", "a red dog"]}
SCORE = {"model": "tiny", "text_1": "a red cat", "text_2": ["so far away", "a red dog"]}
PREFIXES = ("/v1", "/v3", "", "/v2/default/openai/v1")


async def test_each_family_answers_the_same(serve: Serve) -> None:
    # R1, R33, R44
    server = await serve(model_name="tiny")
    async with server.client() as client:
        for path, body, key in (("rerank", RERANK, "results"), ("score", SCORE, "data")):
            answers = [
                (await client.post(f"{prefix}/{path}", json=body)).json() for prefix in PREFIXES
            ]
            assert len({answer.pop("id") for answer in answers}) == 4
            for answer in answers:
                answer.pop("created", None)
            assert answers == [answers[0]] * 4
            assert answers[0]["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
            expected = [1, 0] if path == "rerank" else [0, 1]
            assert [each["index"] for each in answers[0][key]] == expected


async def test_each_family_refuses_in_its_own_words(serve: Serve) -> None:
    # R7, R53
    server = await serve(model_name="tiny")
    async with server.client() as client:

        async def error(path: str, body: object) -> tuple[int, object, object]:
            response = await client.post(path, json=body)
            error_body = response.json()["error"]
            return response.status_code, error_body["code"], error_body.get("param")

        for prefix in ("/v1", "/v3", "/v2/default/openai/v1"):
            assert await error(f"{prefix}/rerank", RERANK | {"query": ""}) == (400, 400, "query")
            assert await error(f"{prefix}/score", SCORE | {"text_2": 5}) == (400, 400, "text_2")
        assert await error("/rerank", {}) == (400, "invalid_request", "query")
        assert await error("/v3/score", {"text_1": "a", "text_2": "b"}) == (400, 400, "model")


@pytest.mark.parametrize(("path", "body"), [("rerank", RERANK), ("score", SCORE)])
async def test_model_without_scores_is_400(
    serve: Serve, script: ScriptFactory, path: str, body: dict[str, object]
) -> None:
    server = await serve(script(capabilities={"embeddings": False}), model_name="tiny")
    async with server.client() as client:
        refused = await client.post(f"/v1/{path}", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].endswith(
        ": tiny is no reranking model, and the scripted engine has no embeddings"
    )


async def test_reranking_model_answers_in_its_own_process(
    serve: Serve, script: ScriptFactory
) -> None:
    server = await serve(script(capabilities={"rerank": True}), model_name="tiny")
    async with server.client() as client:
        answer = (await client.post("/v1/rerank", json=RERANK | {"top_n": 1})).json()
    [result] = answer["results"]
    assert result == {
        "index": 1,
        "relevance_score": pytest.approx(2 / 3),
        "document": {"text": "a red dog"},
    }

"""Reranking and scores over HTTP, with a reranking model and with the default model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.emulator.processes import run_emulator
from tests.models.reranking import write_reranking_model

PAIRS = [
    ("The cat sat on the mat.", "A kitten was sitting on the rug."),
    ("The stock market fell sharply today.", "Shares lost value on Wall Street."),
    ("How do I bake bread?", "Bread baking recipe"),
]


async def post(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_closest_document_of_the_default_model_is_first(default_model_path: Path) -> None:
    environment = {"MODEL_PATH": str(default_model_path), "THREADS": "1", "MODEL_NAME": "tiny"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        async with server.client() as client:
            documents = [document for _, document in PAIRS]
            for index, (query, _) in enumerate(PAIRS):
                body = {"model": "tiny", "query": query, "documents": documents, "top_n": 1}
                [result] = (await post(client, "/v1/rerank", body))["results"]
                assert result["index"] == index
                assert result["document"] == {"text": documents[index]}
                body = {"model": "tiny", "text_1": query, "text_2": documents}
                scores = [each["score"] for each in (await post(client, "/v1/score", body))["data"]]
                assert scores[index] == max(scores)
                assert scores[index] == pytest.approx(result["relevance_score"], abs=1e-6)
                assert all(-1 <= score <= 1 for score in scores)


@pytest.mark.timeout(180)
async def test_reranking_model_scores_on_all_ways_to_it(tmp_path: Path) -> None:
    model = tmp_path / "reranker.gguf"
    write_reranking_model(model)
    environment = {"MODEL_PATH": str(model), "THREADS": "1", "MODEL_NAME": "tiny"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        async with server.client() as client:
            query, documents = "capital of france", ["bananas are yellow", "paris", "a b"]
            scored = await post(client, "/v1/score", {"text_1": query, "text_2": documents})
            scores = [each["score"] for each in scored["data"]]
            assert len(set(scores)) == 3
            body = {"query": query, "documents": documents}
            answer = await post(client, "/v1/rerank", body)
            order = [each["index"] for each in answer["results"]]
            assert order == sorted(range(3), key=lambda index: -scores[index])
            job = {"input": {"openai_route": "/v1/rerank", "openai_input": body}}
            finished = await post(client, "/runsync", job)
            assert finished["status"] == "COMPLETED"
            assert finished["output"]["results"] == answer["results"]
            queued = await post(client, "/v2/default/openai/v1/rerank", body)
            assert queued["results"] == answer["results"]
            long = await client.post("/v1/rerank", json=body | {"documents": ["a", "one " * 62]})
            error = long.json()["error"]
            assert (long.status_code, error["param"]) == (400, "documents[1]")
            assert error["code"] == "context_length_exceeded"
            refused = await client.post("/v1/embeddings", json={"input": "a"})
            assert refused.status_code == 400

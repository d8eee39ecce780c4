"""Reranking and scores over HTTP: each family of routes, and through the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.tokenizer import RERANK_TOKENS, write_tokenizer
from tests.integration.emulator.batches.support import client_of
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

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


async def serve_rkllm(serve: Serve, tmp_path: Path, libraries: Path, **settings: Any) -> Server:
    """Serve a reranking model of RKLLM, which the doctor has not seen."""
    write_tokenizer(tmp_path, added=RERANK_TOKENS)
    return await serve(
        write_script(tmp_path / "qwen-reranker.rkllm", "vocabulary 264\nanswer\n"),
        engine="rkllm",
        model_name="tiny",
        rkllm_lib_path=build("1.2", libraries),
        **settings,
    )


async def read_answers(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a body by each route, by a job and by a batch."""
    async with server.client() as client, client_of(server) as batches:
        answers = [(await client.post(f"{prefix}/{path}", json=body)) for prefix in PREFIXES]
        job_input = {"openai_route": f"/v1/{path}", "openai_input": body}
        job = (await client.post("/v2/default/runsync", json={"input": job_input})).json()
        line = {"custom_id": "a", "method": "POST", "url": f"/v1/{path}", "body": body}
        batch = await batches.ended(await batches.create([line], f"/v1/{path}"))
        lines = await batches.lines(batch.output_file_id or batch.error_file_id)
    line_body = lines[0]["response"]["body"]
    return [*(answer.json() for answer in answers), job.get("output", job), line_body]


async def test_reranking_model_on_rkllm_scores_by_every_way(
    serve: Serve, tmp_path: Path, fake_rkllm_folder: Path
) -> None:
    server = await serve_rkllm(serve, tmp_path, fake_rkllm_folder, rkllm_mode="logits")
    answers = await read_answers(server, "rerank", RERANK)
    scores = [[each["relevance_score"] for each in answer["results"]] for answer in answers]
    assert scores == [scores[0]] * len(answers)
    first, second = scores[0]
    assert 1 > first > second > 0
    scored = await read_answers(server, "score", SCORE)
    order = [each["index"] for each in answers[0]["results"]]
    for answer in scored:
        assert [answer["data"][index]["score"] for index in order] == scores[0]
        assert answer["usage"] == answers[0]["usage"]
    assert answers[0]["usage"]["prompt_tokens"] > 2 * 300


async def test_reranking_model_on_rkllm_names_the_mode_by_every_way(
    serve: Serve, tmp_path: Path, fake_rkllm_folder: Path
) -> None:
    server = await serve_rkllm(serve, tmp_path, fake_rkllm_folder)
    reason = "tiny is a reranking model by its name, and scores texts only with RKLLM_MODE=logits"
    for path, body, param in (("rerank", RERANK, "query"), ("score", SCORE, "text_1")):
        for answer in await read_answers(server, path, body):
            assert f"{param}: {reason}" in str(answer["error"])
    async with server.client() as client:
        shown = (await client.post("/api/show", json={"model": "tiny"})).json()
    assert not {"completion", "embedding"} & {*shown["capabilities"]}

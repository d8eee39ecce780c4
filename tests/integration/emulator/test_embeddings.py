"""Vectors over HTTP: each family of routes, and by way of the queue."""

from __future__ import annotations

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve

BODY = {"model": "tiny", "input": ["a red cat", "so far away"]}


async def test_each_family_answers_the_same(serve: Serve) -> None:
    # R1, R33, R44
    server = await serve(model_name="tiny")
    async with server.client() as client:
        found = [
            (await client.post(f"{prefix}/embeddings", json=BODY)).json()
            for prefix in ("/v1", "/v3", "", "/v2/default/openai/v1")
        ]
    assert [each["index"] for each in found[0]["data"]] == [0, 1]
    assert found[0]["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert found == [found[0]] * 4


async def test_each_family_refuses_in_its_own_words(serve: Serve) -> None:
    # R7, R53
    server = await serve(model_name="tiny")
    async with server.client() as client:

        async def error(prefix: str, **body: object) -> tuple[int, object, object]:
            answer = await client.post(f"{prefix}/embeddings", json=body)
            told = answer.json()["error"]
            return answer.status_code, told["code"], told.get("param")

        for prefix in ("/v1", "/v3", "/v2/default/openai/v1"):
            assert await error(prefix, model="tiny", input="") == (400, 400, "input")
            assert await error(prefix, model="big", input="a") == (404, "model_not_found", "model")
        assert await error("", input="") == (400, "invalid_request", "input")
        assert await error("", model="big", input="a") == (404, "model_not_found", "model")
        assert await error("/v3", input="a") == (400, 400, "model")


async def test_model_without_vectors_says_so(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(capabilities={"embeddings": False}))
    async with server.client() as client:
        refused = await client.post("/v1/embeddings", json={"input": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "input: the scripted engine has no embeddings"

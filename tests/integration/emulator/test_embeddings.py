"""Embeddings over HTTP: each family of routes, and through the queue."""

from __future__ import annotations

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve

BODY = {"model": "tiny", "input": ["a red cat", "so far away"]}


async def test_each_family_answers_the_same(serve: Serve) -> None:
    # R1, R33, R44
    server = await serve(model_name="tiny")
    async with server.client() as client:
        answers = [
            (await client.post(f"{prefix}/embeddings", json=BODY)).json()
            for prefix in ("/v1", "/v3", "", "/v2/default/openai/v1")
        ]
    assert [each["index"] for each in answers[0]["data"]] == [0, 1]
    assert answers[0]["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert answers == [answers[0]] * 4


async def test_each_family_refuses_in_its_own_words(serve: Serve) -> None:
    # R7, R53
    server = await serve(model_name="tiny")
    async with server.client() as client:

        async def error(prefix: str, **body: object) -> tuple[int, object, object]:
            response = await client.post(f"{prefix}/embeddings", json=body)
            error_body = response.json()["error"]
            return response.status_code, error_body["code"], error_body.get("param")

        for prefix in ("/v1", "/v3", "/v2/default/openai/v1"):
            assert await error(prefix, model="tiny", input="") == (400, 400, "input")
            assert await error(prefix, model="big", input="a") == (404, "model_not_found", "model")
        assert await error("", input="") == (400, "invalid_request", "input")
        assert await error("", model="big", input="a") == (404, "model_not_found", "model")
        assert await error("/v3", input="a") == (400, 400, "model")


async def test_model_without_embeddings_is_400(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script(capabilities={"embeddings": False}))
    async with server.client() as client:
        refused = await client.post("/v1/embeddings", json={"input": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "input: the scripted engine has no embeddings"

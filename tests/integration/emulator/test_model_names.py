"""Several names of one model: in requests, in answers and in the list of models (R63)."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from handler.models.model_list import ModelEntry
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.test_openai_client import async_client


async def test_openai_client_may_use_every_name(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(
        script({"pieces": ["Hi."]}, context_length=512), model_name="little, gpt-4o"
    )
    async with async_client(server) as client:
        for name in ("little", "gpt-4o"):
            chat = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "x"}], max_tokens=5
            )
            assert (chat.model, chat.choices[0].message.content) == ("little", "Hi.")
            stream = await client.completions.create(
                model=name, prompt="x", max_tokens=5, stream=True
            )
            assert {chunk.model async for chunk in stream} == {"little"}
            vector = await client.embeddings.create(model=name, input="x")
            assert vector.model == "little"
            assert (await client.models.retrieve(name)).id == name
        listed = {model.id: model.model_dump() async for model in client.models.list()}
        assert list(listed) == ["little", "gpt-4o"]
        assert {name: model["root"] for name, model in listed.items()} == {
            "little": "little",
            "gpt-4o": "little",
        }
        assert {model["max_model_len"] for model in listed.values()} == {512}
        with pytest.raises(openai.NotFoundError, match="there is: little, gpt-4o"):
            await client.completions.create(model="other", prompt="x", max_tokens=5)


async def test_every_model_of_a_list_may_have_names(serve: Serve, script: ScriptFactory) -> None:
    models = (
        ModelEntry(path=script({"pieces": ["one"]}), name="a,b"),
        ModelEntry(path=script({"pieces": ["two"]}), name="c,d"),
    )
    server = await serve(models=models, engine_isolation="process")
    async with async_client(server) as client:
        assert [model.id async for model in client.models.list()] == ["a", "b", "c", "d"]
        for name, model, text in (("b", "a", "one"), ("d", "c", "two"), ("c", "c", "two")):
            answer = await client.completions.create(model=name, prompt="x", max_tokens=5)
            assert (answer.model, answer.choices[0].text) == (model, text)
    async with server.client() as http:
        job = {"input": {"prompt": "x", "model": "d", "sampling_params": {"max_tokens": 5}}}
        assert (await http.post("/runsync", json=job)).json()["output"]["model"] == "c"


async def test_latest_is_the_same_model_on_every_route(serve: Serve, script: ScriptFactory) -> None:
    models = (
        ModelEntry(path=script({"pieces": ["other"]}), name="other"),
        ModelEntry(path=script({"pieces": ["small"]}, capabilities={"rerank": True}), name="small"),
        ModelEntry(path=script({"pieces": ["tagged"]}), name="other:latest"),
    )
    server = await serve(models=models, engine_isolation="process")
    user = [{"role": "user", "content": "x"}]
    text = {"prompt": "x", "max_tokens": 5}
    calls: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": user, "max_tokens": 5},
        "/v1/completions": text,
        "/v1/responses": {"input": "x", "max_output_tokens": 5},
        "/v1/messages": {"messages": user, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": user},
        "/v1/embeddings": {"input": "x"},
        "/v1/rerank": {"query": "x", "documents": ["x"]},
        "/v1/score": {"text_1": "x", "text_2": "x"},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
        "/api/chat": {"messages": user, "stream": False},
        "/api/generate": {"prompt": "x", "stream": False},
        "/api/embed": {"input": "x"},
        "/api/embeddings": {"prompt": "x"},
        "/api/show": {},
        "/api/pull": {"stream": False},
    }
    async with server.client() as client:
        for path, body in calls.items():
            answer = await client.post(path, json={"model": "small:latest", **body})
            assert answer.status_code == 200, (path, answer.text)
            assert "other" not in answer.text, path
            wrong = await client.post(path, json={"model": "wrong:latest", **body})
            assert wrong.status_code in (400, 404), path
        found = [
            (await client.get(f"/v1/models/{name}")).json()["id"]
            for name in ("small:latest", "other", "other:latest")
        ]
        tagged = await client.post("/v1/completions", json={"model": "other:latest", **text})
        jobs: list[dict[str, Any]] = [
            {"model": "small:latest", "prompt": "x"},
            {
                "openai_route": "/v1/completions",
                "openai_input": {"model": "small:latest", **text},
            },
        ]
        outputs = [
            (await client.post("/runsync", json={"input": each})).json()["output"] for each in jobs
        ]
    assert found == ["small", "other", "other:latest"]
    assert tagged.json()["choices"][0]["text"] == "tagged"
    assert [each["model"] for each in outputs] == ["small", "small"]


async def test_latest_of_one_model_has_no_warning(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["x"]}), model_name="little")
    async with server.client() as client:
        job = {"input": {"prompt": "x", "model": "little:latest"}}
        output = (await client.post("/runsync", json=job)).json()["output"]
        body = {"prompt": "x", "model": "little:latest"}
        answer = (await client.post("/v1/completions", json=body)).json()
    assert "warnings" not in output
    assert answer["model"] == "little"


async def test_model_list_has_no_length_before_the_model_is_loaded(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "model.json"
    gate.write_text(json.dumps({"load_error": "no memory"}))
    server = await serve(gate, model_name="little")
    async with async_client(server) as client:
        (model,) = [each.model_dump() async for each in client.models.list()]
    assert model["max_model_len"] is None

"""Several names of one model: in requests, in answers and in the list of models (R63)."""

from __future__ import annotations

import json

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


async def test_model_list_has_no_length_before_the_model_is_loaded(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "model.json"
    gate.write_text(json.dumps({"load_error": "no memory"}))
    server = await serve(gate, model_name="little")
    async with async_client(server) as client:
        (model,) = [each.model_dump() async for each in client.models.list()]
    assert model["max_model_len"] is None

"""A server with several models: who answers, and how each is doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from handler.models.model_list import ModelEntry
from tests.conftest import ScriptFactory
from tests.error_bodies import read_reason
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server
from tests.waiting import poll_until

ROUTE = "/v1/completions"


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    """Three models: one with two copies, another one, and one that does not load."""

    def entry(name: str, copies: int = 1, **fields: Any) -> ModelEntry:
        path: Path = script({"pieces": [f"I am {name}."]}, slots=1, **fields)
        return ModelEntry(path=path, name=name, copies=copies)

    models = (entry("big", copies=2), entry("small"), entry("broken", load_error="no memory"))
    started = await serve(models=models, engine_isolation="process")

    async def settled() -> bool:
        async with started.client() as client:
            models = (await client.get("/health")).json()["models"]
        states = [instance["state"] for model in models for instance in model["instances"]]
        return states == ["ready", "ready", "ready", "dead"]

    await poll_until(settled)
    return started


async def test_copies_are_counted_by_their_states(server: Server) -> None:
    # An engine of several models is ready while one is: what has been given up is told apart.
    async with server.client() as client:
        metrics = (await client.get("/system/status")).json()["metrics"]
    assert metrics["worker_rkllm_engine_state"] == {
        "loading": 0,
        "ready": 1,
        "restarting": 0,
        "dead": 0,
    }
    assert metrics["worker_rkllm_model_copies"] == {
        "loading": 0,
        "ready": 3,
        "restarting": 0,
        "dead": 1,
    }


async def test_a_server_of_several_models(server: Server) -> None:
    # R7, R42, R54
    async with server.client() as client:
        for given, name in (({}, "big"), ({"model": "small"}, "small"), ({"model": "big"}, "big")):
            answer = (await client.post(ROUTE, json={"prompt": "who?", **given})).json()
            assert (answer["model"], answer["choices"][0]["text"]) == (name, f"I am {name}.")

            job = {"input": {"prompt": "who?", **given}}
            output = (await client.post("/runsync", json=job)).json()["output"]
            assert (output["model"], output["choices"][0]["text"]) == (name, f"I am {name}.")

            body = {"prompt": "who?", **given}
            routed = {"input": {"openai_route": ROUTE, "openai_input": body}}
            output = (await client.post("/runsync", json=routed)).json()["output"]
            assert output["model"] == name

        names = ("big", "small") * 8
        asked = [client.post(ROUTE, json={"prompt": "who?", "model": name}) for name in names]
        answers = [answer.json() for answer in await asyncio.gather(*asked)]
        assert [answer["choices"][0]["text"] for answer in answers] == [
            f"I am {name}." for name in names
        ]

        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["big", "small", "broken"]

        unknown = await client.post(ROUTE, json={"prompt": "who?", "model": "gpt"})
        assert unknown.status_code == 404
        told = 'the model "gpt" does not exist, there is: big, small, broken'
        assert read_reason(unknown.json()) == told
        refused = await client.post("/runsync", json={"input": {"prompt": "x", "model": "gpt"}})
        assert refused.json()["error"] == told
        tokens = await client.post("/tokenize", json={"prompt": "a b", "model": "gpt"})
        assert tokens.status_code == 404

        dead = await client.post(ROUTE, json={"prompt": "who?", "model": "broken"})
        assert dead.status_code == 503

        status = (await client.get("/system/status")).json()
        assert status["status"] == "operational"
        assert status["models"] == [
            {"id": "big", "status": "ready"},
            {"id": "small", "status": "ready"},
            {"id": "broken", "status": "dead"},
        ]

        answer = await client.get("/health")
        health = answer.json()
        assert (answer.status_code, health["status"], health["model"]) == (200, "degraded", "big")
        assert (health["engine"]["state"], health["engine"]["slots"]) == ("ready", 3)
        assert [model["slots"] for model in health["models"][:2]] == [2, 1]
        assert health["models"][2]["failure"] == "no memory"
        assert len(health["models"][0]["instances"]) == 2

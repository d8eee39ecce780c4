"""A server with several models: routing by model, and the state of each model."""

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
    """Start a server with three models: one with two copies, and one that fails to load."""

    def entry(name: str, copies: int = 1, **fields: Any) -> ModelEntry:
        path: Path = script({"pieces": [f"I am {name}."]}, slots=1, **fields)
        return ModelEntry(path=path, name=name, copies=copies)

    models = (entry("big", copies=2), entry("small"), entry("broken", load_error="no memory"))
    running_server = await serve(models=models, engine_isolation="process")

    async def has_settled() -> bool:
        async with running_server.client() as client:
            models = (await client.get("/health")).json()["models"]
        states = [instance["state"] for model in models for instance in model["instances"]]
        return states == ["ready", "ready", "ready", "dead"]

    await poll_until(has_settled)
    return running_server


async def test_copies_are_counted_by_their_states(server: Server) -> None:
    # The engine is ready while one model is ready: failed copies are counted separately.
    async with server.client() as client:
        metrics = (await client.get("/system/status")).json()["metrics"]
    assert metrics["worker_rkllm_engine_state"] == {
        "loading": 0,
        "ready": 1,
        "restarting": 0,
        "dead": 0,
        "unloaded": 0,
    }
    assert metrics["worker_rkllm_model_copies"] == {
        "loading": 0,
        "ready": 3,
        "restarting": 0,
        "dead": 1,
        "unloaded": 0,
    }


async def test_requests_and_jobs_are_answered_by_the_requested_model(server: Server) -> None:
    # R7, R42, R54
    async with server.client() as client:
        for model_field, name in (
            ({}, "big"),
            ({"model": "small"}, "small"),
            ({"model": "big"}, "big"),
        ):
            response = (await client.post(ROUTE, json={"prompt": "who?", **model_field})).json()
            assert (response["model"], response["choices"][0]["text"]) == (name, f"I am {name}.")

            job = {"input": {"prompt": "who?", **model_field}}
            output = (await client.post("/runsync", json=job)).json()["output"]
            assert (output["model"], output["choices"][0]["text"]) == (name, f"I am {name}.")

            body = {"prompt": "who?", **model_field}
            routed = {"input": {"openai_route": ROUTE, "openai_input": body}}
            output = (await client.post("/runsync", json=routed)).json()["output"]
            assert output["model"] == name

        names = ("big", "small") * 8
        requests = [client.post(ROUTE, json={"prompt": "who?", "model": name}) for name in names]
        answers = [response.json() for response in await asyncio.gather(*requests)]
        assert [response["choices"][0]["text"] for response in answers] == [
            f"I am {name}." for name in names
        ]

        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["big", "small", "broken"]

        unknown = await client.post(ROUTE, json={"prompt": "who?", "model": "gpt"})
        assert unknown.status_code == 404
        message = 'the model "gpt" does not exist, there is: big, small, broken'
        assert read_reason(unknown.json()) == message
        refused = await client.post("/runsync", json={"input": {"prompt": "x", "model": "gpt"}})
        assert refused.json()["error"] == message
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

        response = await client.get("/health")
        health = response.json()
        assert (response.status_code, health["status"], health["model"]) == (200, "degraded", "big")
        assert (health["engine"]["state"], health["engine"]["slots"]) == ("ready", 3)
        assert [model["slots"] for model in health["models"][:2]] == [2, 1]
        assert health["models"][2]["failure"].endswith("cannot be loaded: no memory")
        assert len(health["models"][0]["instances"]) == 2

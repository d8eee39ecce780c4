"""A server whose model is on another server of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handler.settings.model_settings import resolve_models
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve, build_settings
from tests.integration.emulator.serving import Server

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "two words"}]},
    "/v1/completions": {"prompt": "two words"},
}


async def serve_both(serve: Serve, script: ScriptFactory, *answers: Any) -> Server:
    """Start a server with answers, and return one that has it as its engine."""
    behind = await serve(script(*answers), model_name="m")
    return await serve(engine="openai", upstream_url=behind.url, model_name="m")


@pytest.mark.parametrize("route", ROUTES)
async def test_usage_of_an_answer_that_a_stop_string_ends_is_known(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    front = await serve_both(serve, script, {"pieces": ["one ", "two ", "ST", "OP ", "three"]})
    async with front.client() as client:
        answer = (await client.post(route, json=ROUTES[route] | {"stop": ["STOP"]})).json()
    [choice] = answer["choices"]
    assert (choice.get("text") or choice["message"]["content"]) == "one two "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")
    assert answer["usage"]["prompt_tokens"] > 0
    assert answer["usage"]["completion_tokens"] == 4
    assert "warnings" not in answer


async def test_stop_string_in_the_reasoning_ends_nothing(
    serve: Serve, script: ScriptFactory
) -> None:
    pieces = ["<think>", "a STOP b", "</think>", "text ", "STOP", " more"]
    front = await serve_both(serve, script, {"pieces": pieces})
    async with front.client() as client:
        body = ROUTES["/v1/chat/completions"] | {"stop": ["STOP"]}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "text "
    assert choice["message"]["reasoning_content"] == "a STOP b"
    assert "warnings" not in answer


async def test_unknown_context_of_a_model_is_null(serve: Serve, script: ScriptFactory) -> None:
    behind = await serve(script({"pieces": ["a"]}), model_name="m")
    front = await serve(engine="openai", upstream_url=behind.url, model_name="other")
    async with front.client() as client:
        await client.post("/v1/chat/completions", json=ROUTES["/v1/chat/completions"])
        [model] = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["state"], model["max_model_len"]) == ("other", "ready", None)


async def test_models_of_the_server_are_served_if_none_is_named(
    serve: Serve, script: ScriptFactory
) -> None:
    behind = await serve(script({"pieces": ["a"]}), model_name="org/m.v1")
    values = {"engine": "openai", "upstream_url": behind.url, "job_db": ":memory:"}
    found = await asyncio.to_thread(resolve_models, build_settings(values))
    assert found.served_models == ("org/m.v1",)
    listed = resolve_models(build_settings(values | {"model_name": "mine,other"}))
    assert (listed.served_models, str(listed.model_list[0].path)) == (("mine", "other"), "mine")

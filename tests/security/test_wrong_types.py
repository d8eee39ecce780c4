"""A member of a body that has a wrong type is the client's mistake: a sample of all members."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.type_cases import (
    CAPABILITIES,
    MODEL,
    batch_cases,
    body_cases,
    check_full_bodies,
    line_cases,
    run_batch,
    send_lines,
    send_type_cases,
)

_SEED = 1
_SAMPLE = 250
_CASES = 18_000
_LINES = 20
_WRONG_TOOLS: list[Any] = [True, 0, 1.5, "x", "", {}, {"type": []}]
_WRONG_NAMES: list[Any] = [[], [[]], {}, {"type": []}, None, 1, "None", "g"]
_TOOL = {"name": "f", "input_schema": {"type": "object"}}
_MESSAGES = {"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], "tools": [_TOOL]}


async def test_sample_of_wrong_types_is_never_the_servers_fault(
    serve: Serve, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    path = script({"pieces": ["yes", " it"]}, capabilities=CAPABILITIES)
    server = await serve(path, model_name=MODEL, rate_limit_chat="off", webhook_tries=1)
    chance = random.Random(_SEED)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        cases = [case for case in body_cases() if chance.random() < _SAMPLE / _CASES]
        statuses = await send_type_cases(client, cases)
        lines = [case for case in line_cases() if chance.random() < 0.03][:_LINES]
        await send_lines(client, lines)
    await run_batch(server, "/v1/messages", itertools.islice(batch_cases("/v1/messages"), _LINES))
    assert min(statuses[200], statuses[400]) > len(cases) // 5
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_tools_of_a_wrong_type_are_refused_by_name(serve: Serve, route: str) -> None:
    server = await serve()
    async with server.client(sends_anything=True) as client:
        for tools in _WRONG_TOOLS:
            choice = {"type": "tool", "name": "f"}
            body = _MESSAGES | {"tools": tools, "tool_choice": choice}
            error = (await client.post(route, json=body)).json()["error"]
            assert error["type"] == "invalid_request_error", tools
            assert error["message"].startswith("tools must be an array, got "), tools
        for name in _WRONG_NAMES:
            body = _MESSAGES | {"tool_choice": {"type": "tool", "name": name}}
            error = (await client.post(route, json=body)).json()["error"]
            assert error["type"] == "invalid_request_error", name
            assert error["message"].startswith("tool_choice.name must be "), name

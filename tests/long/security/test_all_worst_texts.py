"""Each text of each API, and each kind of answer, as a long hostile text."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.type_cases import CAPABILITIES, MODEL, check_full_bodies
from tests.security.worst_texts import STALL_LIMIT_S, answer_cases, find_stalls, text_cases

_SETTINGS = {
    "model_name": MODEL,
    "rate_limit_chat": "off",
    "max_jobs": 1_000_000,
    "max_jobs_mb": 4_000,
    "webhook_tries": 1,
}


@pytest.mark.timeout(900)
async def test_no_worst_input_stalls_another_client(serve: Serve, script: ScriptFactory) -> None:
    path = script({"pieces": ["yes", " it"]}, capabilities=CAPABILITIES)
    server = await serve(path, **_SETTINGS)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        calls = ((case.route, json.dumps(case.body).encode()) for case in text_cases())
        assert await find_stalls(client, calls, STALL_LIMIT_S) == []


@pytest.mark.timeout(900)
async def test_no_worst_answer_stalls_another_client(serve: Serve, script: ScriptFactory) -> None:
    cases = list(answer_cases(300_000))
    path = script(*(answer for _, _, answer in cases), {}, capabilities=CAPABILITIES)
    server = await serve(path, **_SETTINGS)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        calls = ((route, content) for route, content, _ in cases)
        assert await find_stalls(client, calls, STALL_LIMIT_S) == []

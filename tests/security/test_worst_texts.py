"""Long hostile texts hold up no other client: a sample of all inputs, and of all answers."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.type_cases import CAPABILITIES, MODEL, check_full_bodies
from tests.security.worst_texts import STALL_LIMIT_S, answer_cases, find_stalls, text_cases

# One of so many cases; both are prime, so that all routes and pieces take part.
_EACH_INPUT, _EACH_ANSWER = 53, 31


async def test_sample_of_worst_inputs_stalls_no_other_client(
    serve: Serve, script: ScriptFactory
) -> None:
    path = script({"pieces": ["yes", " it"]}, capabilities=CAPABILITIES)
    server = await serve(path, model_name=MODEL, rate_limit_chat="off", webhook_tries=1)
    cases = islice(text_cases(), 0, None, _EACH_INPUT)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        calls = ((case.route, json.dumps(case.body).encode()) for case in cases)
        assert await find_stalls(client, calls, STALL_LIMIT_S) == []


@pytest.mark.long
async def test_sample_of_worst_answers_stalls_no_other_client(
    serve: Serve, script: ScriptFactory
) -> None:
    cases = list(islice(answer_cases(30_000), 0, None, _EACH_ANSWER))
    path = script(*(answer for _, _, answer in cases), {}, capabilities=CAPABILITIES)
    server = await serve(path, model_name=MODEL, rate_limit_chat="off", webhook_tries=1)
    async with server.client(sends_anything=True) as client:
        await check_full_bodies(client)
        calls = ((route, content) for route, content, _ in cases)
        assert await find_stalls(client, calls, STALL_LIMIT_S) == []

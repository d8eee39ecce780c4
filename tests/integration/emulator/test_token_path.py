"""The number of our functions that one token of a stream enters in the server's process.

A latency depends on the machine and its caches; this number does not, and a step that is added to
each token's way changes it (docs/decisions/0034-count-the-functions-of-a-tokens-way.md).
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, Server

ROOT = Path(__file__).resolve().parents[3]
PRODUCT_FOLDERS = tuple(f"{ROOT / name}/" for name in ("common", "emulator", "engine", "handler"))
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "talk"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "talk"}]},
}
# Longer than the shortest time between two frames of a run, so that no tokens share a frame.
PAUSE_MS = 50
SHORT, LONG = 5, 15
# Raise it only with the reason for the step, in the decision record.
MAX_FUNCTIONS = 31


async def stream_functions(server: Server, route: str, tokens: int) -> collections.Counter[str]:
    """Stream an answer, and return the product's functions with the number of their calls."""
    calls: collections.Counter[str] = collections.Counter()

    def count_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT_FOLDERS):
            calls[f"{Path(code.co_filename).name}:{code.co_qualname}"] += 1

    body = {**BODIES[route], "stream": True, "max_tokens": tokens}
    with await RawConnection.connect(server.port) as wire:
        previous = sys.getprofile()
        sys.setprofile(count_call)
        try:
            await wire.post(route, body)
            await wire.read_head()
            response = b""
            while chunk := await wire.read_chunk():
                response += chunk
        finally:
            sys.setprofile(previous)
    assert response.count(b'"finish_reason":null') >= tokens, "tokens shared an event"
    await server.wait_until_idle()
    return calls


@pytest.mark.parametrize("route", BODIES)
async def test_token_enters_few_functions_of_the_server(
    serve: Serve, script: ScriptFactory, route: str
) -> None:
    answer = {"pieces": ["token "], "repeat": LONG, "delay_ms": PAUSE_MS}
    server = await serve(script(answer), engine_isolation="process")
    await stream_functions(server, route, SHORT)
    short = await stream_functions(server, route, SHORT)
    long = await stream_functions(server, route, LONG)

    long.subtract(short)
    per_token = {name: count / (LONG - SHORT) for name, count in long.items()}
    assert sum(per_token.values()) <= MAX_FUNCTIONS, [name for name in per_token if per_token[name]]

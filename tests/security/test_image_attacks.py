"""Images that cost a decoder much more than their size are refused on each API."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.security.type_cases import CAPABILITIES, IMAGE, IMAGE_BODIES, MODEL
from tests.unit.handler.input.images import inflating_png, jpeg_header

_JSON = {"content-type": "application/json"}
ATTACKS = {
    "a pixel that inflates to 20 MB": (inflating_png(20_000_000), "no more data than its 1 x 1"),
    "JPEG of 200 scans": (
        jpeg_header(64, 33) + b"\xff\xda" * 200,
        "no more data than its 64 x 33",
    ),
    "JPEG of segments": (b"\xff\xd8\xff\xe0" + b"\xff\xe0\x00\x02" * 100_000, "PNG, JPEG or GIF"),
    "JPEG of fill bytes": (b"\xff\xd8\xff" + b"\xff" * 400_000, "PNG, JPEG or GIF"),
}


def _jobs(bodies: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the bodies as they are, and as jobs where a job may have that route."""
    calls = list(bodies.items())
    calls += [
        ("/runsync", {"input": {"openai_route": route, "openai_input": body}})
        for route, body in bodies.items()
        if route.startswith("/v1/")
    ]
    plain = {"messages": bodies["/v1/chat/completions"]["messages"]}
    return [*calls, ("/runsync", {"input": plain})]


@pytest.mark.parametrize("name", ATTACKS)
async def test_costly_image_is_refused_on_each_api(
    serve: Serve, script: ScriptFactory, subtests: pytest.Subtests, name: str
) -> None:
    content, reason = ATTACKS[name]
    path = script({"pieces": ["yes"]}, capabilities=CAPABILITIES)
    server = await serve(path, model_name=MODEL)
    async with server.client() as client:
        for route, body in _jobs(IMAGE_BODIES):
            with subtests.test(f"{route} {sorted(body)}"):
                valid = json.dumps(body)
                attack = valid.replace(IMAGE, base64.b64encode(content).decode())
                assert (await client.post(route, content=valid, headers=_JSON)).status_code == 200
                refused = await client.post(route, content=attack, headers=_JSON)
                assert reason in refused.text
                if route == "/runsync" and refused.status_code == 200:
                    assert refused.json()["status"] == "FAILED"
                else:
                    assert refused.status_code == 400

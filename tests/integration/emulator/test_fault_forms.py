"""Faults in the streams of each API, in the form that the clients of that API read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server

USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}
LAST = {
    "/v1/chat/completions": "chat.completion.chunk",
    "/v1/responses": "response.completed",
    "/v1/messages": "message_delta",
}


@pytest.fixture
async def server(serve: Serve, script: ScriptFactory) -> Server:
    pieces = ["Good", {"text": " day", "delay_ms": 30}]
    return await serve(script({"pieces": pieces}), faults_per_request=True)


async def stream(server: Server, route: str, fault: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a stream, and its events of JSON."""
    async with server.client() as client:
        answer = await client.post(
            route, json=BODIES[route] | {"stream": True}, headers={"x-fault": fault}
        )
    data = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    return answer.text, [json.loads(line.removeprefix("data: ")) for line in data]


def kind_of(event: dict[str, Any]) -> str:
    return str(event.get("type", event.get("object", "error")))


@pytest.mark.parametrize("route", BODIES)
async def test_error_event_has_the_form_of_its_api(server: Server, route: str) -> None:
    text, events = await stream(server, route, "error-event=1")
    assert len(events) == 2
    error = events[-1]
    match route:
        case "/v1/responses":
            assert "event: error\n" in text
            assert (error["type"], "error" in error) == ("error", False)
            assert "on purpose" in error["message"]
        case "/v1/messages":
            assert text.endswith("\n\n")
            assert "event: error\n" in text
            assert "[DONE]" not in text
            assert error["type"] == "error"
            assert "on purpose" in error["error"]["message"]
        case _:
            assert "event:" not in text
            assert "on purpose" in error["error"]["message"]


@pytest.mark.parametrize("route", BODIES)
async def test_finish_is_missing_or_there_twice(server: Server, route: str) -> None:
    def finishes(events: list[dict[str, Any]]) -> int:
        return sum(
            kind_of(event) == LAST[route]
            and (not event.get("choices") or event["choices"][0]["finish_reason"] is not None)
            for event in events
        )

    counts = [
        finishes((await stream(server, route, fault))[1])
        for fault in ("comment", "no-finish", "double-finish")
    ]
    assert counts == [1, 0, 2]


@pytest.mark.parametrize("route", BODIES)
async def test_line_separators_follow_the_first_text(server: Server, route: str) -> None:
    text, _ = await stream(server, route, "line-separators")
    assert text.count("\u2028") == 1
    assert text.index("Good") < text.index("\u2028") < text.index(" day")

"""Faults in the streams of each API, in the form that the clients of that API read."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from emulator.middleware.faults.catalogue import EVENT_FAULT_NAMES, STREAM_FAULTS
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
    assert len(events) == (3 if route == "/v1/responses" else 2)
    error = events[1]
    match route:
        case "/v1/responses":
            assert "event: error\n" in text
            assert (error["type"], "error" in error) == ("error", False)
            assert "on purpose" in error["message"]
            assert events[2]["type"] == "response.failed"
            assert events[2]["response"]["id"] == events[0]["response"]["id"]
            assert [each["sequence_number"] for each in events] == [0, 1, 2]
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


OLLAMA = ("/api/chat", "/api/generate")
OLLAMA_BODY = {"model": "tiny", "messages": USER, "prompt": "hi", "stream": True}
GIVES_LINES = {
    "error-event=0": ["error"],
    "error-event=1": ["größer", "error"],
    "end-after=1": ["größer"],
    "skip-event=1": ["end"],
    "repeat-event=1": ["größer", "größer", "end"],
    "empty-data=2": ["größer", "", "end"],
    "malformed-event=1": ["broken", "end"],
    "no-finish": ["größer"],
    "double-finish": ["größer", "end", "end"],
    "line-separators": ["größer\u0085\u2028\u2029", "end"],
    "crlf": ["größer", "end"],
    "buffer": ["größer", "end"],
    "split-bytes": ["größer", "end"],
    "split-character": ["größer", "end"],
    "slow=0.001": ["größer", "end"],
    "stall=0.001": ["größer", "end"],
    "bare-error=1": ["größer", "broken"],
    "message-error=1": ["größer", "note"],
    "end-inside=1": ["broken"],
    "swap-events=1": ["end", "größer"],
    "no-text": ["end"],
    "no-usage": ["größer", "end"],
    "text-with-finish": ["end"],
    "text-after-finish": ["end", "größer"],
    "unescaped": ["größer", "end"],
    "escaped": ["größer", "end"],
    "unknown-members": ["größer", "end"],
    "large-event": ["größer", "end"],
    "blank-lines": ["", "", "größer", "", "", "end"],
    "no-blank-line": ["größer", "end"],
    "split-events": ["größer", "end"],
    "split-lines": ["größer", "end"],
}
CUTS = {
    "drop-after=1": ["größer"],
    "cut-inside=1": ["broken"],
    "drop-after=0": [],
    "reset-after=1": ["größer"],
    "half-close-after=1": ["größer"],
    "bad-chunk=1": ["größer"],
    "long-chunk=1": ["größer", "broken"],
}


@pytest.fixture
async def ollama(serve: Serve, script: ScriptFactory) -> Server:
    # One piece of text, so the number of lines does not depend on the load of the machine.
    path = script({"pieces": ["größer"]})
    return await serve(path, faults_per_request=True, model_name="tiny")


def read_line(line: str) -> str:
    """Return what a line of Ollama's stream has: its text, or `end`, `error` or `broken`."""
    if not line:
        return ""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return "broken"
    if "error" in value:
        assert set(value) == {"error", "request_id"}
        return "error"
    if "done" not in value:
        return "note"
    if value["done"]:
        return "end"
    return str(value["message"]["content"] if "message" in value else value["response"])


async def read_lines(server: Server, route: str, fault: str) -> tuple[bytes, list[str], bool]:
    """Return the body of a stream, its lines, and whether it was complete."""
    body = bytearray()
    async with (
        server.client() as client,
        client.stream("POST", route, json=OLLAMA_BODY, headers={"x-fault": fault}) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        is_complete = True
        try:
            async for part in answer.aiter_raw():
                body += part
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            is_complete = False
    lines = bytes(body).decode().split("\n")
    if lines[-1] == "":
        lines.pop()
    return bytes(body), [read_line(line.removesuffix("\r")) for line in lines], is_complete


async def test_stream_faults_change_the_lines_of_ollama(ollama: Server) -> None:
    for fault, expected in GIVES_LINES.items():
        for route in OLLAMA if "=1" in fault else OLLAMA[:1]:
            body, lines, is_complete = await read_lines(ollama, route, fault)
            assert (lines, is_complete) == (expected, True), fault
            assert (b"\r\n" in body) is (fault == "crlf")
    body, _, _ = await read_lines(ollama, "/api/chat", "bom")
    assert body.startswith(b"\xef\xbb\xbf{")


async def test_stream_faults_cut_the_lines_of_ollama(ollama: Server) -> None:
    for fault, expected in CUTS.items():
        _, lines, is_complete = await read_lines(ollama, "/api/generate", fault)
        assert (lines, is_complete) == (expected, False), fault


async def test_faults_of_events_are_refused_for_ollama(ollama: Server) -> None:
    tested = {fault.partition("=")[0] for fault in (*GIVES_LINES, *CUTS, "bom")}
    assert tested | EVENT_FAULT_NAMES == {kind.name for kind in STREAM_FAULTS}
    async with ollama.client() as client:
        for name in EVENT_FAULT_NAMES:
            headers = {"x-fault": f"delay=0, {name}"}
            answer = await client.post("/api/chat", json=OLLAMA_BODY, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["param"] == "x-fault"
            assert f"{name} changes server-sent events" in answer.json()["error"]


async def test_rule_of_events_does_not_concern_ollama(ollama: Server) -> None:
    async with ollama.client() as client:
        await client.post("/faults", json={"fault": "comment", "operation": "chat"})
        answer = await client.post("/api/chat", json=OLLAMA_BODY)
        assert answer.status_code == 200
        assert (await client.get("/faults")).json()["rules"][0]["applied"] == 0

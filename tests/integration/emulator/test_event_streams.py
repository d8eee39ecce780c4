"""The streams of each API, read by a parser that follows the WHATWG's text to the letter."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from engine.backends.openai.event_stream import Event, EventStreamParser
from tests.integration.emulator.conftest import build_settings
from tests.integration.emulator.serving import RawConnection, Server, build_request_head, run_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Texts that a wrong server sends as line ends or fields, and that a wrong client takes for them.
PIECES = (
    "Grüße\u0085a\u2028b\u2029c ",
    "\0d\x0b\x0c\x1c\x1e\ufeffe",
    "f\r\ng\rh\n",
    "data: x\n\nevent: end\r\rid: 9\n\n",
    "data: [DONE]\n\n: i\n\n茶",
)
TEXT = "".join(PIECES)
USER = [{"role": "user", "content": "hi"}]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 99},
}
JOB = "/stream/{id}"
# A worker's stream, of which the server builds the events again.
QUEUED = "/v2/default/openai"
ROUTES = (*BODIES, f"{QUEUED}/v1/chat/completions", f"{QUEUED}/v1/responses", JOB)
OLLAMA: Mapping[str, dict[str, Any]] = {
    "/api/chat": {"messages": USER, "model": "tiny"},
    "/api/generate": {"prompt": "hi", "model": "tiny"},
}
# Each changes the form of a stream and not its events. With what shows in some streams that it is
# there; the parts of those that are split are the same bytes.
FORMS = {
    "crlf": b"}\r\n\r\n",
    "cr": b"}\r\r",
    "bom": b"\xef\xbb\xbfdata: {",
    "comment": b"\n: comment\n\n",
    "no-space": b"\ndata:{",
    "multi-line-data": b"\ndata: }\n\n",
    "id-and-retry": b"\nretry: 1000\n",
    "event-names": b"event: chunk\ndata: {",
    "split-bytes": b"data: {",
    "split-character": b"data: {",
}
# These differ between two streams of the same request.
_VARYING_KEYS = {"id", "item_id", "created", "created_at", "completed_at", "sequence_number"}
# The lines that the specification asks authors to write: its fields, comments and empty lines.
_ALLOWED_LINE = re.compile(r"(?:(?:data|event|id): [^\r\n]*|:[^\r\n]*|)")


@dataclass(frozen=True)
class Stream:
    """A stream that was read: its bytes, and its events in order."""

    body: bytes
    events: list[Event]

    def text(self) -> str:
        """Return the text of all deltas."""
        return "".join(_take_text(each) for each in self._values())

    def steps(self) -> list[Any]:
        """Return the data of the events without the text of the deltas, consecutive ones once.

        The server sends several pieces in one event while the client or the model is slow.
        """
        steps: list[Any] = []
        for value in self._values():
            _take_text(value)
            if value not in steps[-1:]:
                steps.append(value)
        return steps

    def names(self) -> list[str]:
        """Return the names of the events, consecutive ones once."""
        names: list[str] = []
        for event in self.events:
            if event.name not in names[-1:]:
                names.append(event.name)
        return names

    def _values(self) -> list[Any]:
        return [
            event.data
            if event.data == "[DONE]"
            else json.loads(event.data, object_hook=_drop_varying_keys)
            for event in self.events
        ]


def _drop_varying_keys(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key not in _VARYING_KEYS}


def _take_text(value: Any) -> str:
    """Remove the text of a delta from the data of an event, and return it.

    The outputs of a job are no deltas here: all streams of an ended job have the same outputs.
    """
    if not isinstance(value, dict):
        return ""
    choice: Any = (value.get("choices") or [{}])[0]
    delta: Any = value.get("delta") or choice.get("delta") or choice
    if isinstance(delta, str):
        return str(value.pop("delta"))
    return str(delta.pop("content" if "content" in delta else "text", ""))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    path = tmp_path_factory.mktemp("event_streams") / "script.json"
    # With pauses, so that some pieces have an event of their own.
    path.write_text(json.dumps({"answers": [{"pieces": list(PIECES), "delay_ms": 1}]}))
    settings = build_settings(
        {
            "engine": "scripted",
            "engine_isolation": "thread",
            "model_path": path,
            "model_name": "tiny",
            "job_db": ":memory:",
            "drain_s": 0,
            "faults_per_request": True,
        }
    )
    async with run_server(settings) as running:
        yield running
        await running.wait_until_no_requests()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job_path(server: Server) -> str:
    """The stream of a job that has ended."""
    async with server.client() as client:
        job = await client.post("/runsync", json={"input": {"prompt": "hi", "stream": True}})
    return f"/stream/{job.json()['id']}"


async def read_stream(server: Server, route: str, job_path: str, fault: str = "delay=0") -> Stream:
    """Read a stream to its end, with the parts of the body as they arrive."""
    parser, body, events = EventStreamParser(), bytearray(), []
    with await RawConnection.connect(server.port) as wire:
        headers = f"accept: text/event-stream\r\nx-fault: {fault}\r\n"
        if route == JOB:
            await wire.send(build_request_head("GET", job_path, headers))
        else:
            body_of_call = {**BODIES[route.removeprefix(QUEUED)], "stream": True}
            await wire.post(route, body_of_call, headers)
        status, response_headers = await wire.read_head()
        assert status == 200
        # Without a charset, requests decodes text as ISO-8859-1.
        assert response_headers["content-type"] == "text/event-stream; charset=utf-8"
        while part := await wire.read_chunk():
            body += part
            events += parser.feed(part)
    # The last event is complete: nothing remains that another empty line would end.
    assert parser.feed(b"\n\n") == []
    return Stream(bytes(body), events)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain_streams(server: Server, job_path: str) -> dict[str, Stream]:
    """Return the stream of each route without a fault."""
    return {route: await read_stream(server, route, job_path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES)
async def test_stream_has_only_lines_of_the_specification(
    plain_streams: dict[str, Stream], route: str
) -> None:
    body = plain_streams[route].body.decode("utf-8", "strict")
    assert all(_ALLOWED_LINE.fullmatch(line) for line in body.split("\n"))
    # Clients that split lines as Python does see the same lines.
    assert body.splitlines() == body.split("\n")[:-1]


@pytest.mark.parametrize("route", ROUTES)
async def test_text_of_a_stream_arrives_unchanged(
    plain_streams: dict[str, Stream], route: str
) -> None:
    stream = plain_streams[route]
    if route == JOB:
        *outputs, end = [json.loads(event.data) for event in stream.events]
        assert stream.names() == ["message", "end"]
        assert outputs[-1]["output"]["choices"][0]["text"] == TEXT
        assert end["output"]["choices"][0]["text"] == TEXT
        assert "".join(end["output"]["choices"][0]["deltas"]) == TEXT
    else:
        assert stream.text() == TEXT


@pytest.mark.parametrize("fault", FORMS)
async def test_stream_with_another_form_has_the_same_events(
    server: Server, job_path: str, plain_streams: dict[str, Stream], fault: str
) -> None:
    bodies = b""
    for route in (*BODIES, JOB):
        plain, stream = plain_streams[route], await read_stream(server, route, job_path, fault)
        bodies += stream.body
        assert stream.text() == plain.text(), route
        assert stream.steps() == plain.steps(), route
        if fault == "event-names":
            names = ["chunk" if name == "message" else name for name in plain.names()]
            assert stream.names() == names, route
        else:
            assert stream.names() == plain.names(), route
        if fault == "id-and-retry":
            assert all(event.last_event_id for event in stream.events), route
    assert FORMS[fault] in bodies


@pytest.mark.parametrize("route", OLLAMA)
@pytest.mark.parametrize("fault", ["delay=0", "crlf", "split-character"])
async def test_lines_of_ollama_are_json_with_the_same_text(
    server: Server, route: str, fault: str
) -> None:
    async with server.client() as client:
        answer = await client.post(route, json=OLLAMA[route], headers={"x-fault": fault})
    assert answer.headers["content-type"] == "application/x-ndjson"
    body = answer.content.decode("utf-8", "strict")
    *lines, rest = body.split("\n")
    assert rest == ""
    assert [line.removesuffix("\r") for line in lines] == body.splitlines()
    values = [json.loads(line) for line in lines]
    texts = [
        each["message"]["content"] if "message" in each else each["response"] for each in values
    ]
    assert "".join(texts) == TEXT
    assert [each["done"] for each in values] == [False] * (len(values) - 1) + [True]

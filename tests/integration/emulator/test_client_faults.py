"""Each fault of `x-fault`, as clients see it over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from emulator.middleware.faults.catalogue import FAULT_KINDS, RULE_FAULT_NAMES, ValueKind
from emulator.middleware.faults.middleware import RequestFaultMiddleware
from emulator.settings.emulator_settings import EmulatorSettings
from engine.hooks import RequestEnded, RequestStarted
from jobs import JobStatus
from tests.error_bodies import read_reason
from tests.integration.emulator.serving import RawConnection, Server, run_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTE = "/v1/completions"
TEXT = "one zwölf three"
# The server may send several pieces in one event if the machine is busy.
# One slot: a generation that goes on after a fault would hold up the next request.
SCRIPT = {
    "slots": 1,
    "answers": [
        {"when": "endless", "pieces": ["more "], "repeat": -1, "delay_ms": 1},
        {"pieces": ["one ", {"text": "zwölf ", "delay_ms": 20}, {"text": "three", "delay_ms": 20}]},
    ],
}


def settings(script_file: Path, **changes: Any) -> EmulatorSettings:
    return EmulatorSettings(
        engine="scripted",
        engine_isolation="thread",
        model_path=script_file,
        model_name="tiny",
        job_db=":memory:",
        drain_s=0,
        fault_seed=1,
        **changes,
    )


@pytest.fixture(scope="module")
def script_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(script_file: Path) -> AsyncIterator[Server]:
    async with run_server(settings(script_file, faults_per_request=True)) as running:
        yield running


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def slot_is_free_afterwards(server: Server) -> AsyncIterator[None]:
    """Fail a test whose faults leave a request, a generation or a job behind."""
    server.events.recorded.clear()
    yield
    await server.wait_until_idle()
    async with server.client() as client:
        await client.delete("/faults")
        answer = await client.post(ROUTE, json={"prompt": "hi"})
        assert answer.json()["choices"][0]["text"] == TEXT
        assert (await client.get("/v2/default/health")).json()["jobs"]["inProgress"] == 0


async def post(server: Server, fault: str, path: str = ROUTE, **body: Any) -> httpx2.Response:
    async with server.client() as client:
        return await client.post(path, json={"prompt": "hi", **body}, headers={"x-fault": fault})


async def read_stream(server: Server, fault: str) -> bytes:
    """Return the whole body of a stream with faults."""
    response = await post(server, fault, stream=True)
    assert response.status_code == 200
    return response.content


def read_data(body: bytes) -> list[Any]:
    """Return the decoded data of a stream whose events have one line of data and nothing else."""
    blocks = [block.removeprefix(b"data: ") for block in body.split(b"\n\n")[:-1]]
    return [block.decode() if block == b"[DONE]" else json.loads(block) for block in blocks]


def texts_of(events: list[Any]) -> list[str]:
    return [
        choice["text"]
        for event in events
        if event != "[DONE]"
        for choice in event["choices"]
        if choice["text"]
    ]


def open_sdk(server: Server, fault: str, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{server.url}/v1",
        api_key="any",
        default_headers={"x-fault": fault},
        **{"max_retries": 0, **options},
    )


async def read_sdk_text(server: Server, fault: str) -> str:
    """Return the text that OpenAI's client reads from a stream with faults."""
    async with open_sdk(server, fault) as client:
        stream = await client.completions.create(model="tiny", prompt="hi", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


# -- responses that replace the server's ----------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_status_is_answered_without_a_generation(server: Server, stream: bool) -> None:
    response = await post(server, "status=429;retry-after=7", stream=stream)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert server.events.of(RequestStarted) == []


async def test_sdk_raises_the_error_of_the_status(server: Server) -> None:
    async with open_sdk(server, "status=500") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.completions.create(model="tiny", prompt="hi")
    assert "on purpose" in str(caught.value)


async def test_status_has_the_error_format_of_its_path(server: Server) -> None:
    response = await post(server, "status=503", path="/completions")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "service_unavailable"


async def test_html_502_is_the_page_of_a_proxy(server: Server) -> None:
    response = await post(server, "html-502; retry-after=3")
    assert (response.status_code, response.headers["retry-after"]) == (502, "3")
    assert response.headers["content-type"].startswith("text/html")
    assert "<h1>502 Bad Gateway</h1>" in response.text


async def test_reset_cuts_the_connection_with_an_rst(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi"}, "x-fault: reset\r\n")
        with pytest.raises(ConnectionResetError):
            await wire.read()
    assert server.events.of(RequestStarted) == []


async def test_close_ends_the_connection_without_a_response(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi"}, "x-fault: close\r\n")
        assert await wire.read() == b""
    assert server.events.of(RequestStarted) == []


# -- all responses --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("replacement", ["", "; status=503"])
async def test_delay_postpones_the_response(server: Server, stream: bool, replacement: str) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    response = await post(server, f"delay=0.2{replacement}", stream=stream)
    assert response.status_code == (503 if replacement else 200)
    assert loop.time() - began >= 0.199


@pytest.mark.parametrize(
    "fault", ["delay=300", "delay=300; status=503", "delay=300; reset", "stall=300", "slow=10"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_pause_ends_when_the_client_disconnects(
    server: Server, fault: str, stream: bool
) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi", "stream": stream}, f"x-fault: {fault}\r\n")
        if ";" in fault:
            await server.wait_until(lambda: bool(server.tasks))
        else:
            await server.events.wait(RequestStarted)
    await server.wait_until_idle()


async def test_wrong_content_type_is_html(server: Server) -> None:
    for stream in (False, True):
        response = await post(server, "wrong-content-type", stream=stream)
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert b"choices" in response.content


async def test_false_gzip_cannot_be_decoded(server: Server) -> None:
    with pytest.raises(httpx2.DecodingError):
        await post(server, "false-gzip")


@pytest.mark.parametrize("stream", [False, True])
async def test_empty_body_has_no_content(server: Server, stream: bool) -> None:
    response = await post(server, "empty-body", stream=stream)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == "0"


async def test_empty_body_stops_an_endless_generation(server: Server) -> None:
    await post(server, "empty-body", prompt="endless", stream=True)
    await server.events.wait(RequestEnded)


# -- JSON bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["invalid-json", "truncated-json"])
async def test_json_body_cannot_be_parsed(server: Server, fault: str) -> None:
    response = await post(server, fault)
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.content) > 0
    with pytest.raises(json.JSONDecodeError):
        response.json()


async def test_truncated_body_is_shorter_than_its_declared_length(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi"}, "x-fault: truncated-body\r\n")
        status, headers = await wire.read_head()
        body = await wire.read_all()
    assert status == 200
    assert len(body) == int(headers["content-length"]) // 2
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete message body"):
        await post(server, "truncated-body")


@pytest.mark.parametrize("fault", ["drop-after=1", "crlf", "no-done"])
async def test_faults_of_streams_leave_json_unchanged(server: Server, fault: str) -> None:
    assert (await post(server, fault)).json()["choices"][0]["text"] == TEXT


# -- the end of a stream --------------------------------------------------------------------------


async def read_cut_stream(server: Server, fault: str) -> bytes:
    """Return the part of an endless stream that arrives before its connection is cut."""
    with await RawConnection.connect(server.port) as wire:
        body = {"prompt": "endless", "stream": True}
        await wire.post(ROUTE, body, f"x-fault: {fault}\r\n")
        await wire.read_head()
        raw = await wire.read_all()
    await server.events.wait(RequestEnded)
    assert all(event.aborted for event in server.events.of(RequestEnded))
    assert not raw.endswith(b"0\r\n\r\n")
    # The lines of the chunked encoding alternate with the content.
    return b"".join(raw.split(b"\r\n")[1::2])


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_drop_after_cuts_the_connection_after_complete_events(
    server: Server, count: int
) -> None:
    body = await read_cut_stream(server, f"drop-after={count}")
    assert body.count(b"data: ") == count
    assert len(read_data(body)) == count


async def test_cut_inside_cuts_the_connection_inside_an_event(server: Server) -> None:
    body = await read_cut_stream(server, "cut-inside=2")
    complete_event, partial_event = body.split(b"\n\n")
    assert json.loads(complete_event.removeprefix(b"data: "))["choices"]
    assert partial_event.startswith(b'data: {"id"')


async def test_sdk_raises_for_a_cut_connection(server: Server) -> None:
    with pytest.raises(openai.APIConnectionError):
        await read_sdk_text(server, "drop-after=2")


async def test_end_after_ends_the_response_without_done(server: Server) -> None:
    response = await post(server, "end-after=2", prompt="endless", stream=True)
    assert len(read_data(response.content)) == 2
    [ended] = await server.events.wait(RequestEnded)
    assert ended.aborted


async def test_error_event_ends_the_stream(server: Server) -> None:
    response = await post(server, "error-event=2", prompt="endless", stream=True)
    first, second, error, done = read_data(response.content)
    assert first["choices"]
    assert second["choices"]
    assert error["error"]["code"] == 500
    assert done == "[DONE]"


async def test_error_event_has_the_error_format_of_its_path(server: Server) -> None:
    response = await post(server, "error-event=0", path="/completions", stream=True)
    assert read_data(response.content)[0]["error"]["code"] == "internal"


async def test_sdk_raises_an_error_event(server: Server) -> None:
    with pytest.raises(openai.APIError, match="on purpose"):
        await read_sdk_text(server, "error-event=1")


# -- the time between events ----------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "pauses_s"), [("stall=0.2", 0.2), ("slow=0.1", 0.2)])
async def test_pauses_separate_events(server: Server, fault: str, pauses_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    body = await read_stream(server, fault)
    assert loop.time() - began >= pauses_s - 0.001
    assert "".join(texts_of(read_data(body))) == TEXT


async def test_stalled_client_times_out_after_the_first_event(server: Server) -> None:
    async with (
        server.client(timeout=0.3) as client,
        client.stream(
            "POST",
            ROUTE,
            json={"prompt": "hi", "stream": True},
            headers={"x-fault": "stall=300"},
        ) as response,
    ):
        parts = response.aiter_bytes()
        [text] = texts_of(read_data(await anext(parts)))
        assert TEXT.startswith(text)
        with pytest.raises(httpx2.ReadTimeout):
            await anext(parts)


async def test_buffer_sends_all_events_in_one_chunk(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi", "stream": True}, "x-fault: buffer\r\n")
        await wire.read_head()
        chunk = await wire.read_chunk()
        assert await wire.read_chunk() == b""
    assert "".join(texts_of(read_data(chunk))) == TEXT


# -- the content of a stream ----------------------------------------------------------------------


async def test_malformed_event_is_cut_off_json(server: Server) -> None:
    blocks = (await read_stream(server, "malformed-event=2")).split(b"\n\n")
    assert json.loads(blocks[0].removeprefix(b"data: "))
    with pytest.raises(json.JSONDecodeError):
        json.loads(blocks[1].removeprefix(b"data: "))
    with pytest.raises(json.JSONDecodeError):
        await read_sdk_text(server, "malformed-event=2")


async def test_empty_data_precedes_an_event(server: Server) -> None:
    blocks = (await read_stream(server, "empty-data=2")).split(b"\n\n")
    assert blocks[0].startswith(b"data: {")
    assert blocks[1] == b"data: "
    assert blocks[2].startswith(b"data: {")


async def test_skip_event_loses_its_text(server: Server) -> None:
    text = "".join(texts_of(read_data(await read_stream(server, "skip-event"))))
    assert TEXT.endswith(text)
    assert text != TEXT


async def test_repeat_event_doubles_its_text(server: Server) -> None:
    text = await read_sdk_text(server, "repeat-event=1")
    repeated = text.removesuffix(TEXT)
    assert repeated
    assert TEXT.startswith(repeated)


async def test_empty_choices_precede_the_first_event(server: Server) -> None:
    first, second, *_ = read_data(await read_stream(server, "empty-choices"))
    assert first == {**second, "choices": []}
    assert TEXT.startswith(second["choices"][0]["text"])


@pytest.mark.parametrize(("fault", "count"), [("no-finish", 0), ("double-finish", 2)])
async def test_finish_reason_is_missing_or_duplicated(
    server: Server, fault: str, count: int
) -> None:
    events = read_data(await read_stream(server, fault))
    assert "".join(texts_of(events)) == TEXT
    chunks = [event for event in events if event != "[DONE]"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert len([reason for reason in reasons if reason]) == count
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize(("fault", "count"), [("no-done", 0), ("done-twice", 2)])
async def test_done_is_missing_or_duplicated(server: Server, fault: str, count: int) -> None:
    events = read_data(await read_stream(server, fault))
    assert events.count("[DONE]") == count
    assert await read_sdk_text(server, fault) == TEXT


async def test_text_after_done_repeats_the_last_text(server: Server) -> None:
    *_, done, last = read_data(await read_stream(server, "text-after-done"))
    assert done == "[DONE]"
    assert last["choices"][0]["text"].endswith("three")
    assert await read_sdk_text(server, "text-after-done") == TEXT


async def test_line_separators_break_lines_in_the_text(server: Server) -> None:
    body = await read_stream(server, "line-separators")
    first_text, separator, rest = "".join(texts_of(read_data(body))).partition("\u0085\u2028\u2029")
    assert (first_text + rest, bool(separator)) == (TEXT, True)
    # httpx splits lines as `str.splitlines` does.
    first = next(httpx.Response(200, content=body).iter_lines())
    with pytest.raises(json.JSONDecodeError):
        json.loads(first.removeprefix("data: "))


# -- the format of a stream -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "beginning"),
    [
        ("comment", rb": comment\n\ndata: \{.+\}\n\n"),
        ("event-names", rb"event: chunk\ndata: \{.+\}\n\n"),
        ("id-and-retry", rb"id: fault-1\nretry: 1000\ndata: \{.+\}\n\n"),
        ("multi-line-data", rb'data: \{\ndata:   "id": .+,\ndata:   "object": (.|\n)+\}\n\n'),
        ("no-space", rb"data:\{.+\}\n\n"),
        ("crlf", rb"data: \{.+\}\r\n\r\n"),
        ("cr", rb"data: \{[^\n]+\}\r\r"),
        ("bom", rb"\xef\xbb\xbfdata: \{.+\}\n\n"),
    ],
)
async def test_event_format_is_changed(server: Server, fault: str, beginning: bytes) -> None:
    assert re.match(beginning, await read_stream(server, fault))


@pytest.mark.parametrize(
    "fault",
    ["comment", "event-names", "id-and-retry", "multi-line-data", "no-space", "crlf", "cr"],
)
async def test_sdk_reads_every_valid_format(server: Server, fault: str) -> None:
    assert await read_sdk_text(server, fault) == TEXT


async def test_split_character_arrives_in_two_reads(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi", "stream": True}, "x-fault: split-character\r\n")
        reads: list[bytes] = []
        while not b"".join(reads).endswith(b"0\r\n\r\n"):
            reads.append(await wire.read())
    [at] = [index for index, data in enumerate(reads) if data.endswith(b"zw\xc3\r\n")]
    assert reads[at + 1].partition(b"\r\n")[2].startswith(b"\xb6lf ")
    assert await read_sdk_text(server, "split-character") == TEXT


async def test_split_bytes_sends_each_byte_in_its_own_chunk(server: Server) -> None:
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "hi", "stream": True}, "x-fault: split-bytes\r\n")
        await wire.read_head()
        body = b""
        while chunk := await wire.read_chunk():
            assert len(chunk) == 1
            body += chunk
    assert "".join(texts_of(read_data(body))) == TEXT
    assert await read_sdk_text(server, "split-bytes") == TEXT


async def test_several_faults_are_combined(server: Server) -> None:
    body = await read_stream(server, "bom; crlf, no-space; event-names; no-done")
    assert body.startswith(b"\xef\xbb\xbfevent: chunk\r\ndata:{")
    assert b"[DONE]" not in body
    assert body.endswith(b"}\r\n\r\n")


# -- other APIs -----------------------------------------------------------------------------------


async def test_cut_stream_of_a_queued_call_cancels_its_job(server: Server) -> None:
    path = "/v2/default/openai/v1/completions"
    with await RawConnection.connect(server.port) as wire:
        body = {"prompt": "endless", "stream": True}
        await wire.post(path, body, "x-fault: drop-after=1\r\n")
        assert (await wire.read_all()).count(b"data: ") == 1
    [ended] = await server.events.wait(RequestEnded)
    assert ended.aborted
    store = server.components.store
    await server.wait_until(lambda: not store.count_by_status()[JobStatus.IN_PROGRESS])


async def test_stream_of_a_job_is_changed_and_the_job_completes(server: Server) -> None:
    async with server.client() as client:
        job = {"input": {"prompt": "hi", "stream": True}}
        job_id = (await client.post("/run", json=job)).json()["id"]
        headers = {"accept": "text/event-stream", "x-fault": "crlf; event-names; end-after=1"}
        stream = await client.get(f"/stream/{job_id}", headers=headers)
        assert re.search(rb"id: 1.1\r\nevent: chunk\r\ndata: \{.+\}\r\n\r\n$", stream.content)
        assert (await client.get(f"/status-sync/{job_id}")).json()["status"] == "COMPLETED"


@pytest.mark.parametrize("path", ["/run", "/runsync", "/v2/other/run"])
async def test_rejected_job_is_not_queued(server: Server, path: str) -> None:
    async with server.client() as client:
        before = (await client.get("/requests")).json()
    response = await post(server, "status=500", path=path, input={"prompt": "hi"})
    assert response.status_code == 500
    async with server.client() as client:
        assert (await client.get("/requests")).json() == before


async def test_no_fault_of_a_chat_leaves_a_generation_running(server: Server) -> None:
    needed = {"status": "=503", "retry-after": "=1; status=503"}
    for kind in FAULT_KINDS.values():
        if kind.name in RULE_FAULT_NAMES:
            continue
        value = "=0.01" if kind.value_kind is ValueKind.SECONDS else needed.get(kind.name, "")
        with await RawConnection.connect(server.port) as wire:
            body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            headers = f"x-fault: {kind.name}{value}\r\nconnection: close\r\n"
            await wire.post("/v1/chat/completions", body, headers)
            with contextlib.suppress(ConnectionResetError):
                await wire.read_all()
        await server.wait_until_idle()


# -- how faults are requested ---------------------------------------------------------------------


async def test_query_parameter_is_a_fault(server: Server) -> None:
    async with server.client() as client:
        answer = await client.get("/v1/models?x-fault=status%3D418")
        assert answer.status_code == 418


async def test_header_and_query_parameter_are_joined(server: Server) -> None:
    async with server.client() as client:
        url = "/v1/models?x-fault=retry-after%3D9"
        answer = await client.get(url, headers={"x-fault": "status=503"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")


@pytest.mark.parametrize("path", [ROUTE, "/completions", "/runsync"])
async def test_unknown_fault_is_rejected_in_the_format_of_the_path(
    server: Server, path: str
) -> None:
    response = await post(server, "explode=1", path=path)
    body = response.json()
    assert response.status_code == 400
    assert read_reason(body).startswith(
        'x-fault: "explode" is not a fault; the faults are bad-chunk, '
    )
    assert isinstance(body["error"], str) is (path == "/runsync")


async def test_other_routes_have_no_faults(server: Server) -> None:
    async with server.client(headers={"x-fault": "status=500"}) as client:
        for path in ("/health", "/faults", "/metrics", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
        taken = await client.get("/v2/other/ping/worker")
        assert taken.status_code == 200


# -- rules ----------------------------------------------------------------------------------------


async def test_rule_applies_its_number_of_times(server: Server) -> None:
    async with server.client() as client:
        rule = {"fault": "status=503", "operation": "completions", "times": 2}
        added = (await client.post("/faults", json=rule)).json()
        assert added["remaining"] == 2
        statuses = [(await client.post(ROUTE, json={"prompt": "hi"})).status_code for _ in range(3)]
        assert statuses == [503, 503, 200]
        assert (await client.get("/v1/models")).status_code == 200
        [listed] = (await client.get("/faults")).json()["rules"]
        assert listed == {**added, "remaining": 0, "applied": 2}


async def test_sdk_retries_after_a_rule_with_one_application(server: Server) -> None:
    async with server.client() as client:
        await client.post("/faults", json={"fault": "status=429; retry-after=0", "times": 1})
    url = f"{server.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=1) as sdk:
        answer = await sdk.completions.create(model="tiny", prompt="hi")
    assert answer.choices[0].text == TEXT


async def test_header_takes_precedence_over_rules(server: Server) -> None:
    async with server.client() as client:
        await client.post("/faults", json={"fault": "status=503", "times": 1})
        assert (await post(server, "status=418")).status_code == 418
        assert (await client.get("/v1/models")).status_code == 503


async def test_rules_are_deleted_one_by_one_or_together(server: Server) -> None:
    async with server.client() as client:
        ids = [
            (await client.post("/faults", json={"fault": fault})).json()["id"]
            for fault in ("status=503", "close", "bom")
        ]
        assert ids == ["rule-1", "rule-2", "rule-3"]
        assert (await client.delete("/faults/rule-2")).json()["fault"] == "close"
        missing = await client.delete("/faults/rule-2")
        assert missing.status_code == 404
        assert missing.json()["error"]["message"] == 'there is no rule "rule-2"'
        assert (await client.delete("/faults")).json() == {"deleted": 2}
        assert (await client.get("/faults")).json()["rules"] == []


async def test_invalid_rule_is_rejected(server: Server) -> None:
    async with server.client() as client:
        answer = await client.post("/faults", json={"fault": "status=200"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == (
            'fault: status must be a whole number from 400 to 599, got "200"'
        )


async def test_faults_are_off_by_default(script_file: Path) -> None:
    async with run_server(settings(script_file)) as plain, plain.client() as client:
        headers = {"x-fault": "status=503"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
        assert (await client.get("/faults")).status_code == 404
        assert "/faults" not in (await client.get("/openapi.json")).json()["paths"]
        stack = {type(layer) for layer in middleware_of(plain.app)}
        assert RequestFaultMiddleware not in stack


def middleware_of(app: Any) -> Iterator[Any]:
    """Yield the middleware of a running application, the outermost first."""
    layer = app.middleware_stack
    while layer is not None:
        yield layer
        layer = getattr(layer, "_app", getattr(layer, "app", None))

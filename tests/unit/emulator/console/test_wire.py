"""The record of what was on the wire: requests, responses, and each part with its time and size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.console.scripts import copy_modules, run_program


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    return copy_modules(tmp_path)


SERVER = """
    import {{ createServer }} from "node:http";
    import {{ Run }} from "./playground/run.js";
    import {{ textOf, transcript }} from "./wire/wire_text.js";
    const sent = [];
    const server = createServer(async (request, response) => {{
      sent.push(request.headers);
      await answer(request.url, response);
    }});
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const {{ fetch }} = globalThis;
    globalThis.fetch = (path, options) =>
      fetch(`http://127.0.0.1:${{server.address().port}}${{path}}`, options);
    const next = () => new Promise((resolve) => setTimeout(resolve, 20));
    const events = {{ "content-type": "text/event-stream" }};
    async function answer(url, response) {{ {answer} }}
    const run = new Run({request}, () => {{}});
    await run.go();
    await run.readStatus();
    const exchanges = run.wire.exchanges.map((each) => ({{
      request: `${{each.method}} ${{each.path}}`,
      body: each.body,
      status: each.head?.status ?? null,
      parts: each.newest.map((part) => [textOf(part).text, part.bytes]),
      areInOrder: each.newest.every(({{ ms }}, at) => ms >= (each.newest[at - 1] ?? each.head).ms),
      end: each.end?.state ?? null,
      reason: each.end?.reason ?? null,
      copy: transcript(each),
    }}));
    console.log(JSON.stringify([run.state, run.error?.message ?? null, exchanges]));
    server.closeAllConnections();
    server.close();
"""
APIS = {
    "completion": ("/v1/completions", ['{"choices": [{"text": "a"}]}', "[DONE]"]),
    "chat": ("/v1/chat/completions", ['{"choices": [{"delta": {"content": "a"}}]}', "[DONE]"]),
    "response": (
        "/v1/responses",
        [
            '{"type": "response.completed", "response": {"status": "completed", "output": []}}',
            "[DONE]",
        ],
    ),
    "message": (
        "/v1/messages",
        [
            '{"type": "message_start", "message": {"content": [], "usage": {}}}',
            '{"type": "message_stop"}',
        ],
    ),
}


def request_of(kind: str, *, stream: bool) -> str:
    path = APIS[kind][0] if kind in APIS else "/v2/default/run"
    return json.dumps({"kind": kind, "path": path, "body": {"prompt": "é"}, "stream": stream})


def record(modules: Path, request: str, answer: str) -> Any:
    """Return a run's state and error, and its exchanges."""
    keys = """
        export const key = () => "secret", askKey = async () => false;
        export const keyHeaders = () => ({ authorization: "Bearer secret" });
    """
    (modules / "server" / "keys.js").write_text(keys)
    return run_program(modules, SERVER.format(request=request, answer=answer))


@pytest.mark.long_except("chat")
@pytest.mark.parametrize("kind", APIS)
def test_stream_is_recorded_event_by_event(modules: Path, kind: str) -> None:
    path, data = APIS[kind]
    events = [": still here\n\n", *(f"data: {each}\n\n" for each in data)]
    # The last two arrive in one write.
    answer = f"""
        const [first, ...others] = {json.dumps(events)};
        response.writeHead(200, events);
        response.write(first);
        await next();
        response.end(others.join(""));
    """
    state, error, (exchange,) = record(modules, request_of(kind, stream=True), answer)
    assert (state, error) == ("done", None)
    assert (exchange["request"], exchange["status"]) == (f"POST {path}", 200)
    assert exchange["body"] == '{"prompt":"é"}'
    assert exchange["parts"] == [[event, len(event)] for event in events]
    assert (exchange["end"], exchange["areInOrder"]) == ("complete", True)
    assert "secret" not in exchange["copy"]
    for text in (path, "authorization: (the key)", "content-type: text/event-stream", *data):
        assert text in exchange["copy"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("completion", '{"choices": [{"text": "a"}]}'),
        ("chat", '{"choices": [{"message": {"content": "a"}}]}'),
        ("response", '{"status": "completed", "output": []}'),
        ("message", '{"content": [], "stop_reason": "end_turn"}'),
    ],
)
def test_complete_answer_is_recorded(modules: Path, kind: str, body: str) -> None:
    answer = f"response.end({json.dumps(body)});"
    state, _, (exchange,) = record(modules, request_of(kind, stream=False), answer)
    assert (state, exchange["parts"]) == ("done", [[body, len(body)]])


def test_job_is_recorded_with_its_stream_and_its_status(modules: Path) -> None:
    job = {"id": "a-job", "endpoint": "default", "status": "COMPLETED", "output": 1}
    end = f"event: end\ndata: {json.dumps(job)}\n\n"
    answer = f"""
        if (url.endsWith("/run")) response.end('{{"id": "a-job", "status": "IN_QUEUE"}}');
        else if (url.includes("/status/")) response.end('{{"status": "COMPLETED"}}');
        else {{
          response.writeHead(200, events);
          response.end(": wait\\n\\n" + {json.dumps(end)});
        }}
    """
    state, _, exchanges = record(modules, request_of("job", stream=True), answer)
    assert state == "done"
    assert [each["request"] for each in exchanges] == [
        "POST /v2/default/run",
        "GET /console/jobs/a-job",
        "GET /v2/default/status/a-job",
    ]
    assert [text for text, _ in exchanges[1]["parts"]] == [": wait\n\n", end]
    assert exchanges[2]["parts"] == [['{"status": "COMPLETED"}', 23]]


def test_stream_that_breaks_is_recorded_up_to_the_break(modules: Path) -> None:
    answer = """
        response.writeHead(200, events);
        response.write('data: {"choices": [{"text": "a"}]}\\n\\ndata: {"cho');
        await next();
        response.destroy();
    """
    state, error, (exchange,) = record(modules, request_of("completion", stream=True), answer)
    assert (state, exchange["end"]) == ("failed", "broken")
    assert [text for text, _ in exchange["parts"]][1] == 'data: {"cho'
    assert exchange["reason"].startswith("The connection broke in the middle of an event (")
    assert error == exchange["reason"]


@pytest.mark.long
def test_break_between_events_is_not_reported_as_inside_one(modules: Path) -> None:
    answer = """
        response.writeHead(200, events);
        response.write('data: {"choices": []}\\r\\n\\r');
        await next();
        response.write("\\n");
        await next();
        response.destroy();
    """
    *_, (exchange,) = record(modules, request_of("chat", stream=True), answer)
    assert exchange["reason"].startswith("The connection broke (")


def test_request_without_a_response_is_recorded_as_such(modules: Path) -> None:
    _, error, (exchange,) = record(modules, request_of("chat", stream=True), "response.destroy();")
    assert (exchange["status"], exchange["end"]) == (None, "broken")
    assert exchange["reason"].startswith("There was no response (")
    assert error == "The server cannot be reached."


def test_error_status_is_recorded_with_its_body(modules: Path) -> None:
    answer = 'response.writeHead(503, { "retry-after": "2" }); response.end("busy");'
    _, error, (exchange,) = record(modules, request_of("response", stream=True), answer)
    assert (error, exchange["status"], exchange["parts"]) == ("busy", 503, [["busy", 4]])
    assert "retry-after: 2" in exchange["copy"]


def test_events_after_the_end_are_recorded_and_change_nothing(modules: Path) -> None:
    answer = """
        response.writeHead(200, events);
        response.write('data: {"choices": [{"text": "a"}]}\\n\\ndata: [DONE]\\n\\n');
        await next();
        response.end("data: nonsense\\n\\n");
    """
    state, error, (exchange,) = record(modules, request_of("completion", stream=True), answer)
    assert (state, error, exchange["end"]) == ("done", None, "complete")
    assert [text for text, _ in exchange["parts"]][-1] == "data: nonsense\n\n"


def test_event_that_is_not_json_is_an_error_with_the_reason(modules: Path) -> None:
    answer = "response.writeHead(200, events); response.end('data: {\\n\\n');"
    _, error, _ = record(modules, request_of("completion", stream=True), answer)
    assert error.startswith("The answer cannot be read: ")


@pytest.mark.long
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_events_are_read_with_every_kind_of_line_end(modules: Path, newline: str) -> None:
    stream = "\ufeff: note\n\nevent: a\ndata: 1\ndata: 2\n\ndata: 🦀\n\n".replace("\n", newline)
    # Byte by byte, so that CR and LF arrive apart.
    program = f"""
        import {{ events }} from "./server/sse.js";
        const bytes = new TextEncoder().encode({json.dumps(stream)});
        const body = new ReadableStream({{
          start(controller) {{
            for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
            controller.close();
          }},
        }});
        const received = [];
        for await (const {{ event, data }} of events(body)) received.push([event, data]);
        console.log(JSON.stringify(received));
    """
    assert run_program(modules, program) == [["a", "1\n2"], ["message", "🦀"]]


def test_record_keeps_the_newest_parts_and_the_beginning_of_each(modules: Path) -> None:
    program = """
        import { leftOutOf, textOf } from "./wire/wire_text.js";
        import { WireLog } from "./wire/wire_log.js";
        const exchange = new WireLog(0).begin("POST", "/a", {}, "x".repeat(30_000));
        let number = 0;
        const body = new ReadableStream({
          pull(controller) {
            number += 1;
            if (number > 2_000) controller.close();
            else controller.enqueue(new Uint8Array(number === 2_000 ? 50_000 : 2).fill(97));
          },
        });
        await exchange.receive(new Response(body)).text();
        const { newest, bytes } = exchange;
        const last = newest[newest.length - 1];
        console.log(JSON.stringify([
          newest.length, leftOutOf(exchange), bytes, exchange.parts.length <= 1_000,
          textOf(last).text.length, textOf(last).leftOut, exchange.body.length,
        ]));
    """
    assert run_program(modules, program) == [
        *(500, "1,500 earlier parts are not kept.", 53_998, True),
        *(10_000, 40_000, 20_000),
    ]


def test_unseen_characters_and_halves_of_characters_are_written_out(modules: Path) -> None:
    crab = list("🦀".encode())
    parts = {
        "a\\r\\x00\\u202eb\n": [*b"a\r\x00", *"\u202e".encode(), *b"b\n"],
        "\\ufeffé": [*"\ufeffé".encode()],
        "<b>\\xf0\\x9f": [*b"<b>", *crab[:2]],
        "\\xa6\\x80 🦀": [*crab[2:], *b" ", *crab],
        "\\xf0": crab[:1],
    }
    program = f"""
        import {{ textOf }} from "./wire/wire_text.js";
        const parts = {json.dumps([*parts.values()])};
        const part = (data) => ({{ data: new Uint8Array(data), bytes: data.length }});
        console.log(JSON.stringify(parts.map((each) => textOf(part(each)).text)));
    """
    assert run_program(modules, program) == [*parts]


def test_fault_is_sent_with_the_request_and_not_with_its_status(modules: Path) -> None:
    request = json.loads(request_of("job", stream=False))
    answer = """
        if (url.endsWith("/run")) response.end('{"id": "a-job", "status": "IN_QUEUE"}');
        else response.end("event: gone\\ndata: {}\\n\\n");
    """
    *_, exchanges = record(modules, json.dumps({**request, "fault": "delay=0"}), answer)
    assert len(exchanges) == 3
    assert [("x-fault: delay=0" in each["copy"]) for each in exchanges] == [True, False, False]


@pytest.mark.long
def test_copied_programs_ask_for_the_fault(modules: Path) -> None:
    program = """
        import { SNIPPETS } from "./playground/snippets.js";
        const plain = { url: "/", body: {}, stream: false, needsKey: false, kind: "chat" };
        const make = Object.values(SNIPPETS);
        const texts = make.map((each) => each({ ...plain, fault: "status=503" }));
        console.log(JSON.stringify([texts, make.map((each) => each(plain))]));
    """
    with_fault, without = run_program(modules, program)
    headers = ("'x-fault: status=503'", '"x-fault": "status=503"', '"x-fault": "status=503"')
    assert all(header in text for header, text in zip(headers, with_fault, strict=True))
    assert not any("x-fault" in text for text in without)

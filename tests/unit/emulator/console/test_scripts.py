"""The page's modules that need no page, in Node.js."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from emulator.autoscaling.worker_exit import KILLED, describe_worker_exit
from tests.unit.emulator.console.scripts import copy_modules, run_program


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    return copy_modules(tmp_path)


def test_spans_and_sizes_have_the_unit_of_the_rounded_value(modules: Path) -> None:
    spans = {
        0.4: "<1 ms",
        999.4: "999 ms",
        999.6: "1.00 s",
        9_996: "10.0 s",
        59_960: "1 min 0 s",
        119_999: "2 min 0 s",
        3_599_700: "1 h 0 min",
        5_400_000: "1 h 30 min",
    }
    sizes = {999: "999 B", 9_960: "10 kB", 999_600: "1.0 MB", 1_500_000: "1.5 MB"}
    program = f"""
        import {{ bytes, duration }} from "./page/format.js";
        const formatted = [{[*spans]}.map(duration), {[*sizes]}.map(bytes)];
        console.log(JSON.stringify(formatted));
    """
    assert run_program(modules, program) == [[*spans.values()], [*sizes.values()]]


def test_every_route_leads_to_an_existing_screen(modules: Path) -> None:
    places = {
        "": ["first", []],
        "#/second": ["second", []],
        "#/second/a%2Fb": ["second", ["a/b"]],
        "#/second/%E0%A4%A": ["second", ["%E0%A4%A"]],
        "#/nowhere/a": ["first", ["a"]],
        # Every JavaScript object has this property.
        "#/constructor": ["first", []],
        # The target of the skip link, which may be in the address at a reload.
        "#screen": ["first", []],
    }
    program = f"""
        import {{ isWithin, placeOf }} from "./page/place.js";
        const hashes = {json.dumps([*places])};
        const places = hashes.map((hash) => placeOf(hash, ["first", "second"]));
        console.log(JSON.stringify([places, hashes.filter(isWithin)]));
    """
    screens, within = run_program(modules, program)
    assert [[each["name"], each["rest"]] for each in screens] == [*places.values()]
    assert within == ["#screen"]


def test_polling_continues_after_a_failed_request(modules: Path) -> None:
    program = """
        import { Polling } from "./page/polling.js";
        globalThis.document = { hidden: false };
        process.on("unhandledRejection", () => {});
        let looks = 0;
        const polling = new Polling(async () => {
          looks += 1;
          if (looks === 1) throw new Error("nobody has thought of it");
          polling.stop();
          console.log(looks);
        }, 1);
        polling.start();
    """
    assert run_program(modules, program) == 2


RUN = """
    import {{ createServer }} from "node:http";
    import {{ Run }} from "./playground/run.js";
    const requests = [];
    const server = createServer(async (request, response) => {{
      requests.push(`${{request.method}} ${{request.url}}`);
      const body = await answer(request.url, response);
      if (body !== undefined) response.end(body);
    }});
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const {{ fetch }} = globalThis;
    globalThis.fetch = (path, options) =>
      fetch(`http://127.0.0.1:${{server.address().port}}${{path}}`, options);
    const run = new Run({request}, () => {{}});
    const stopping = [], troubles = [];
    const stop = () => stopping.push(run.stop().catch((error) => troubles.push(error.message)));
    const SENT = '{{"id": "a-job", "status": "IN_QUEUE"}}';
    const output = {{ choices: [{{ text: "said", deltas: ["said"] }}] }};
    const job = (status) => JSON.stringify({{ id: "a-job", status, output }});
    const ended = (status) => `event: end\\ndata: ${{job(status)}}\\n\\n`;
    async function answer(url, response) {{ {answer} }}
    await run.go();
    await Promise.all(stopping);
    console.log(JSON.stringify([run.state, requests.sort(), troubles]));
    server.closeAllConnections();
    server.close();
"""
JOB = '{ kind: "job", path: "/v2/default/run", body: {} }'


def run_of(modules: Path, request: str, answer: str) -> Any:
    """Return a run's last state, the requests to the server, and the errors of stopping it."""
    # The real functions ask for a key in a dialog of the page.
    keys = "export const key = () => null, keyHeaders = () => ({}), askKey = async () => false;"
    (modules / "server" / "keys.js").write_text(keys)
    return run_program(modules, RUN.format(request=request, answer=answer))


def test_job_stopped_while_it_is_sent_is_cancelled(modules: Path) -> None:
    answer = """
        // It is under way: the server has it, and its sender has no answer.
        if (url.endsWith("/run")) { stop(); return SENT; }
        return url.startsWith("/console") ? ended("CANCELLED") : "{}";
    """
    assert run_of(modules, JOB, answer) == [
        "stopped",
        ["GET /console/jobs/a-job", "POST /v2/default/cancel/a-job", "POST /v2/default/run"],
        [],
    ]


def test_job_whose_cancel_failed_is_followed_to_its_end(modules: Path) -> None:
    answer = """
        if (url.endsWith("/run")) { stop(); return SENT; }
        if (url.startsWith("/console")) return ended("COMPLETED");
        response.statusCode = 503;
        return '{"error": {"message": "The disk is full."}}';
    """
    state, requests, troubles = run_of(modules, JOB, answer)
    assert state == "done"
    assert "POST /v2/default/cancel/a-job" in requests
    assert troubles == ["The disk is full."]


def test_silent_job_is_abandoned_by_a_second_stop(
    modules: Path,
) -> None:
    assert run_of(modules, JOB, "stop(); stop();") == ["stopped", ["POST /v2/default/run"], []]


def test_stopped_openai_request_closes_its_connection(modules: Path) -> None:
    chat = '{ kind: "chat", path: "/v1/chat/completions", body: {}, stream: true }'
    assert run_of(modules, chat, "stop();") == ["stopped", ["POST /v1/chat/completions"], []]


LOG = """
    import {{ createServer }} from "node:http";
    import {{ followLog }} from "./workers/log_follow.js";
    const requests = [], lines = [], breaks = [];
    const server = createServer((request, response) => {{
      requests.push([request.url, request.headers["last-event-id"] ?? null]);
      answer(response, requests.length);
    }});
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const {{ fetch }} = globalThis;
    globalThis.fetch = (path, options) =>
      fetch(`http://127.0.0.1:${{server.address().port}}${{path}}`, options);
    const line = (number) =>
      `id: t/${{number}}\\ndata: {{"ts": "t", "source": "container", "line": "${{number}}"}}\\n\\n`;
    const abort = new AbortController();
    function answer(response, number) {{ {answer} }}
    const outcome = await followLog("my worker", "a/b", {{
      onLine: (each) => lines.push(each.line),
      onBreak: (reason) => {{ breaks.push(reason); {on_break} }},
      signal: abort.signal,
      retryMs: 1,
    }}).then(() => "ended", (error) => error.name === "AbortError" ? "aborted" : error.message);
    console.log(JSON.stringify([outcome, lines, requests, breaks]));
    server.closeAllConnections();
    server.close();
"""
LOG_PATH = "/v2/serverless/my%20worker/workers/a%2Fb/logs?tail=1000"


def follow_log(modules: Path, answer: str, on_break: str = "") -> Any:
    """Return how following a log ended, its lines, the requests, and the reasons of breaks."""
    keys = "export const key = () => null, keyHeaders = () => ({}), askKey = async () => false;"
    (modules / "server" / "keys.js").write_text(keys)
    return run_program(modules, LOG.format(answer=answer, on_break=on_break))


def test_log_resumes_after_the_last_event_when_the_connection_breaks(modules: Path) -> None:
    answer = """
        if (number === 1) {
          // The second event is incomplete.
          response.write(line(1) + line(2).slice(0, 20));
          setTimeout(() => response.destroy(), 50);
        } else if (number === 2) { response.statusCode = 503; response.end("busy"); }
        else if (number === 3) response.end(line(2) + "event: closing\\ndata: {}\\n\\n");
        else response.end(": still here\\n\\n" + line(3));
    """
    outcome, lines, requests, breaks = follow_log(modules, answer)
    assert (outcome, lines) == ("ended", ["1", "2", "3"])
    assert [path for path, _ in requests] == [LOG_PATH] * 4
    assert [last for _, last in requests] == [None, "t/1", "t/1", "t/2"]
    assert breaks == [
        "The connection to the server was lost.",
        "busy",
        "The server is shutting down.",
    ]


def test_log_of_an_unknown_worker_is_not_requested_a_second_time(modules: Path) -> None:
    answer = 'response.statusCode = 404; response.end(\'{"error": "there is no such worker"}\');'
    outcome, _, requests, breaks = follow_log(modules, answer)
    assert (outcome, len(requests), breaks) == ("there is no such worker", 1, [])


def test_log_is_followed_no_longer_when_the_reader_leaves_during_a_break(modules: Path) -> None:
    answer = "response.statusCode = 503; response.end('busy');"
    outcome, _, requests, _ = follow_log(modules, answer, "setTimeout(() => abort.abort(), 0);")
    assert outcome == "aborted"
    assert len(requests) <= 2


def test_log_has_no_more_lines_after_the_reader_has_left(modules: Path) -> None:
    # Both lines arrive together, and the reader leaves at the first one.
    leaves = """
        lines.push = (each) => { Array.prototype.push.call(lines, each); abort.abort(); };
        response.end(line(1) + line(2));
    """
    outcome, lines, requests, breaks = follow_log(modules, leaves)
    assert (outcome, lines, len(requests), breaks) == ("aborted", ["1"], 1, [])


def test_long_lines_and_terminal_codes_are_cut(modules: Path) -> None:
    program = """
        import { displayText, MAX_LINE_CHARS } from "./workers/log_view.js";
        const lines = ["\\x1b[1;31mred\\x1b[0m \\x1b[2K<b>", "x".repeat(MAX_LINE_CHARS + 5)];
        console.log(JSON.stringify([lines.map(displayText), MAX_LINE_CHARS]));
    """
    (plain, long), limit = run_program(modules, program)
    assert plain == "red <b>"
    assert long == "x" * limit + "… (5 more characters)"


def test_ended_workers_stay_in_the_list_up_to_a_limit(modules: Path) -> None:
    program = """
        import { addEnded } from "./workers/worker_list.js";
        const worker = (id, status) => ({ id, status });
        let list = [];
        for (let at = 0; at < 30; at += 1) list = addEnded(list, [worker(`w${at}`, "IDLE")]);
        console.log(JSON.stringify(list));
    """
    running, *ended = run_program(modules, program)
    assert running == {"id": "w29", "status": "IDLE"}
    assert ended == [{"id": f"w{at}", "status": "ENDED"} for at in range(28, 8, -1)]


def test_end_of_a_worker_is_an_error_unless_it_was_orderly(modules: Path) -> None:
    codes = {0: True, 143: True, 1: False, 139: False, KILLED: False}
    lines = [f"launched-1 {describe_worker_exit(code)}" for code in codes]
    program = f"""
        import {{ isOrderlyEnd }} from "./workers/worker_list.js";
        console.log(JSON.stringify({json.dumps(lines)}.map(isOrderlyEnd)));
    """
    assert run_program(modules, program) == list(codes.values())


def test_json_input_is_kept_in_the_tab_and_explains_errors(modules: Path) -> None:
    program = """
        const kept = new Map();
        globalThis.sessionStorage = {
          getItem: (key) => kept.get(key) ?? null,
          setItem: (key, value) => kept.set(key, value),
        };
        globalThis.Node = class {};
        const nothing = () => {};
        const element = () => ({
          addEventListener: nothing,
          append: nothing,
          removeAttribute: nothing,
          replaceChildren: nothing,
          setAttribute: nothing,
        });
        globalThis.document = { createElement: element, createTextNode: element };
        const { JsonInput } = await import("./playground/json_input.js");
        const first = new JsonInput();
        first.select("a", []);
        const results = [first.text.value];
        for (const text of ['[1, null]', '"text"', '{"a": ']) {
          first.text.value = text;
          try { results.push(first.value); } catch (error) { results.push(error.message); }
        }
        const second = new JsonInput();
        second.select("a", [{ file: "tests.json", name: "n", input: { example: 1 } }]);
        results.push(second.text.value);
        second.text.value = "typed";
        second.select("b", [{ file: "tests.json", name: "n", input: { example: 2 } }]);
        results.push(second.value);
        second.select("a", []);
        results.push(second.text.value);
        console.log(JSON.stringify(results));
    """
    empty, array, text, error, kept, example, typed = run_program(modules, program)
    assert (empty, array, text, kept) == ("{}", [1, None], "text", '"text"')
    assert (example, typed) == ({"example": 2}, "typed")
    assert error.startswith("The input is not JSON: ")


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
PICTURES = {
    "image/png": PNG,
    "image/jpeg": base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(40)).decode(),
    "image/gif": base64.b64encode(b"GIF89a" + bytes(40)).decode(),
    "image/webp": base64.b64encode(b"RIFF\x12\xab\x00\x00WEBPVP8 " + bytes(40)).decode(),
}


def test_find_files_finds_pictures_and_files_in_an_output(modules: Path) -> None:
    texts = {
        **{text: [kind, True] for kind, text in PICTURES.items()},
        f"data:image/svg+xml;base64,{PNG}": ["image/svg+xml", True],
        "data:audio/wav;base64,UklGRg==": ["audio/wav", False],
        "data:text/html;charset=utf-8,%3Cb%3E": ["text/html", False],
        "data:,plain": ["text/plain", False],
    }
    others = ["", "text", PNG[:20], f"{PNG[:60]}<script>", "data: none", "data:a/b;base64,<b>"]
    program = f"""
        import {{ contentOf, findFiles, nameOf, readFile }} from "./page/media.js";
        const files = {json.dumps([*texts])}.map(readFile);
        const found = files.map(({{ type, isPicture }}) => [type, isPicture]);
        const others = {json.dumps(others)}.map(readFile);
        const png = "{PNG}";
        const {{ files: inside, hasMore }} = findFiles({{ a: [png, {{ "b c": png }}], d: "text" }});
        const content = await contentOf(files[6]).text();
        const many = findFiles(Array(30).fill(png));
        console.log(JSON.stringify([
          found, others, inside.map(({{ path }}) => path), hasMore, content, nameOf(files[1]),
          nameOf(files[4]), files[0].bytes, [many.files.length, many.hasMore],
          findFiles(Array(50_000).fill("x")).hasMore,
        ]));
    """
    types, unreadable, paths, has_more, content, jpg, svg, size, capped, is_cut = run_program(
        modules, program
    )
    assert types == [*texts.values()]
    assert unreadable == [None] * len(others)
    assert (paths, has_more, content) == (["a[0]", "a[1].b c"], False, "<b>")
    assert (jpg, svg, size) == ("output.jpg", "output.svg", 48)
    assert (capped, is_cut) == ([24, True], True)


def test_only_web_addresses_become_links(modules: Path) -> None:
    addresses = ["https://example.com/a.png?b=1", "http://localhost:1/", "HTTPS://a.example/x.gif"]
    others = [
        "javascript:alert(1)",
        "https://",
        "see https://a.example",
        "https://a b",
        "//a.example",
    ]
    program = f"""
        import {{ webAddress }} from "./page/media.js";
        console.log(JSON.stringify({json.dumps(addresses + others)}.map(webAddress)));
    """
    assert run_program(modules, program) == addresses + [None] * len(others)


def test_progress_is_a_fraction_where_it_has_a_number_or_a_percentage(modules: Path) -> None:
    progress: list[tuple[Any, bool, float | None]] = [
        (0, False, 0),
        (40, False, 0.4),
        (1, False, 0.01),
        (1, True, 1),
        (0.25, True, 0.25),
        ("50%", False, 0.5),
        ("step 3, 12.5 % done", False, 0.125),
        ("1%", False, 0.01),
        ("40", False, 0.4),
        ({"percent": "7%", "text": "a"}, False, 0.07),
        ({"progress": 30}, False, 0.3),
        (101, False, None),
        (-1, False, None),
        ("250%", False, None),
        ("loading", False, None),
        ("", False, None),
        ({"step": 3}, False, None),
        ([50], False, None),
        (None, False, None),
        (True, False, None),
    ]
    program = f"""
        import {{ fractionOf, isFractional }} from "./jobs/progress.js";
        const progress = {json.dumps([[value, is_fraction] for value, is_fraction, _ in progress])};
        const seen = [0.5, "0.5", {{ progress: 0.5 }}, 0, 1, 50, "a", null].map(isFractional);
        console.log(JSON.stringify([progress.map((each) => fractionOf(...each)), seen]));
    """
    fractions, fractional = run_program(modules, program)
    assert fractions == [expected for *_, expected in progress]
    assert fractional == [True] * 3 + [False] * 5


def test_output_is_plain_unless_an_engine_may_have_made_it(modules: Path) -> None:
    model = {"choices": [{"text": "said", "deltas": ["sa", "id"]}], "usage": {"input": 1}}
    cases: list[tuple[bool, list[Any], Any, bool, str]] = [
        (True, [], model, False, "said"),
        (True, ["a", "b"], ["a", "b"], False, "ab"),
        (True, [], {"a": 1}, True, ""),
        (True, ["a", {"b": 1}], [], True, "a"),
        (True, [{"choices": 1}], [], True, ""),
        (False, [], model, True, "said"),
        (False, ["a"], ["a"], True, "a"),
    ]
    program = f"""
        import {{ JobOutput }} from "./jobs/job_output.js";
        const cases = {json.dumps([each[:3] for each in cases])};
        const results = cases.map(([hasEngine, chunks, output]) => {{
          const job = new JobOutput(hasEngine, 0);
          for (const chunk of chunks) job.addChunk(chunk);
          job.end({{ status: "COMPLETED", output }});
          return [job.isPlain, job.log.text()];
        }});
        const job = new JobOutput(false, 0);
        job.setProgress({{ output: 0.5 }});
        results.push([job.hasProgress, job.isFraction]);
        job.setJob({{ status: "IN_QUEUE" }});
        results.push([job.hasProgress, job.isFraction]);
        job.addChunk(1);
        job.clear();
        results.push([job.chunks.length, job.isPlain]);
        console.log(JSON.stringify(results));
    """
    *readings, running, queued, cleared = run_program(modules, program)
    assert readings == [[is_plain, text] for *_, is_plain, text in cases]
    assert (running, queued, cleared) == ([True, True], [False, False], [0, True])


DRAW = """
    globalThis.Node = class {{}};
    const leaves = [];
    const element = () => ({{
      append: () => {{}}, addEventListener: () => {{}}, setAttribute: () => {{}},
    }});
    globalThis.document = {{
      createElement: element, createTextNode: (text) => {{ leaves.push(text); return element(); }},
      getElementById: element,
    }};
    const {{ jsonNodes }} = await import("./page/json_view.js");
    const text = ({{ nodes }}) => nodes.filter((each) => typeof each === "string").join("");
    {program}
"""


def test_drawing_of_a_large_value_is_truncated_with_a_note(modules: Path) -> None:
    program = DRAW.format(
        program="""
        const PNG = "PNG-IN-BASE64";
        // Each of 13 levels has 40 values: all of them would never be drawn.
        let nested = [null];
        for (let level = 0; level < 12; level += 1)
          nested = level < 3 ? Array(40).fill(nested) : [nested];
        const small = jsonNodes({ a: [1, { b: null }] });
        const deep = jsonNodes(nested, 500);
        const long = jsonNodes({ a: "x".repeat(5_000) });
        const file = leaves.length;
        jsonNodes([PNG]);
        console.log(JSON.stringify(
          [small.cut, deep.cut, deep.nodes.length < 10_000, long.cut, leaves.slice(file)],
        ));
        """.replace("PNG-IN-BASE64", PNG)
    )
    small, deep, is_bounded, long, file = run_program(modules, program)
    assert (small, is_bounded, long) == ("", True, "long texts are cut")
    assert re.fullmatch(r"5\d\d of 1\d\d,\d{3} values are shown", deep)
    assert file == ["(image/png, 48 B)"]


TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/runpod/rp_job.py", line 164, in run_job\n'
    "    handler_return = handler(job)\n"
    '  File "/my/handler.py", line 12, in handler\n'
    "    return check(99)\n"
    "ValueError: at most 50\n"
)


def test_error_of_the_sdk_has_a_headline_a_traceback_and_facts(modules: Path) -> None:
    exception = {
        "error_type": "<class 'ValueError'>",
        "error_message": "at most 50",
        "error_traceback": TRACE,
        "hostname": "host",
        "worker_id": "w1",
        "runpod_version": "1.7",
    }
    facts = [["hostname", "host"], ["worker_id", "w1"], ["runpod_version", "1.7"]]
    trace = TRACE.rstrip()
    errors: list[tuple[str, list[Any]]] = [
        (json.dumps(exception), ["ValueError: at most 50", trace, facts]),
        (json.dumps({**exception, "error_message": ""}), ["ValueError", trace, facts]),
        ('{"error_type": "<class \'__main__.Odd\'>"}', ["Odd", "", []]),
        ('{"error_message": {"a": 1}}', ['{"a":1}', "", []]),
        (json.dumps({"error_traceback": TRACE}), ["ValueError: at most 50", trace, []]),
        (f"handler: at most 50 \ntraceback: {TRACE}", ["ValueError: at most 50", trace, []]),
        (f"The model failed.\n{TRACE}", ["The model failed.", trace, []]),
        (TRACE, ["ValueError: at most 50", trace, []]),
        ("no GPU is free", ["no GPU is free", "", []]),
        ('{"code": 3}', ['{\n  "code": 3\n}', "", []]),
        ("{not JSON", ["{not JSON", "", []]),
        ("", ["", "", []]),
    ]
    program = f"""
        import {{ readJobError, tracebackLines }} from "./jobs/job_error.js";
        const errors = {json.dumps([error for error, _ in errors])}.map(readJobError);
        const lines = tracebackLines({json.dumps(trace)});
        const long = tracebackLines("x\\n".repeat(1_000) + "y".repeat(5_000));
        console.log(JSON.stringify([
          errors.map(({{ headline, traceback, facts }}) => [headline, traceback, facts]),
          lines.filter((each) => each.isOwn).map((each) => each.line),
          [long.length, long[100].line, long.at(-1).line.length],
        ]));
    """
    parsed, own, long = run_program(modules, program)
    assert parsed == [expected for _, expected in errors]
    assert own == ['  File "/my/handler.py", line 12, in handler', "    return check(99)"]
    assert long == [301, "… 701 lines are not shown; Copy has all …", 1_001]


def test_lines_of_a_job_name_it_or_are_between_its_lines_without_a_job(
    modules: Path,
) -> None:
    def sdk(job: str | None, message: str) -> str:
        return json.dumps({"requestId": job, "message": message, "level": "INFO"})

    lines = [
        ("starting", False),
        (sdk(None, "Jobs in queue: 1"), False),
        (sdk("a", "Started."), True),
        ("my own line", True),
        (sdk("b", "Started."), False),
        ("of a or of b", True),
        ("INFO   | a | still here", True),
        (sdk("a", "Finished."), True),
        ("of b", False),
        ("DEBUG  | b | Finished Job", False),
        (sdk("a", "Started."), True),
    ]
    failure = json.dumps({"error_message": "no", "error_traceback": "Traceback\nKeyError: no"})
    failed = json.dumps({"requestId": None, "message": failure, "level": "ERROR"})
    program = f"""
        import {{ JobLines, readLine }} from "./workers/log_line.js";
        const lines = {json.dumps([line for line, _ in lines])};
        const jobLines = new JobLines("a");
        const found = lines.map((line) => jobLines.includes({{ source: "container", line }}));
        found.push(jobLines.includes({{ source: "system", line: "the worker was killed" }}));
        const failed = {json.dumps(failed)};
        const texts = [lines[2], lines[0], '{{"requestId": 1}}', '{{"requestId": ', failed];
        console.log(JSON.stringify([found, texts.map((line) => readLine(line).text)]));
    """
    included, texts = run_program(modules, program)
    assert included == [expected for _, expected in lines] + [True]
    assert texts == [
        *("INFO   | a | Started.", "starting", '{"requestId": 1}', '{"requestId": '),
        "ERROR  | Traceback\nKeyError: no",
    ]

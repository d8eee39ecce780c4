"""The page's modules that need no page, in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import emulator.console

FOLDER = Path(emulator.console.__file__).with_name("static")


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """The modules, marked as modules, which the page does in a browser."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def said_by(modules: Path, program: str) -> Any:
    command = ["node", "--input-type=module", "--eval", program]
    done = subprocess.run(command, cwd=modules, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_spans_and_sizes_are_rounded_once(modules: Path) -> None:
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
        import {{ bytes, duration }} from "./format.js";
        const told = [{[*spans]}.map(duration), {[*sizes]}.map(bytes)];
        console.log(JSON.stringify(told));
    """
    assert said_by(modules, program) == [[*spans.values()], [*sizes.values()]]


def test_every_route_leads_to_an_existing_screen(modules: Path) -> None:
    places = {
        "": ["first", []],
        "#/second": ["second", []],
        "#/second/a%2Fb": ["second", ["a/b"]],
        "#/second/%E0%A4%A": ["second", ["%E0%A4%A"]],
        "#/nowhere/a": ["first", ["a"]],
        # What every object of JavaScript's has.
        "#/constructor": ["first", []],
        # The skip link's, with which the page may be loaded again.
        "#screen": ["first", []],
    }
    program = f"""
        import {{ isWithin, placeOf }} from "./place.js";
        const hashes = {json.dumps([*places])};
        const told = hashes.map((hash) => placeOf(hash, ["first", "second"]));
        console.log(JSON.stringify([told, hashes.filter(isWithin)]));
    """
    screens, within = said_by(modules, program)
    assert [[each["name"], each["rest"]] for each in screens] == [*places.values()]
    assert within == ["#screen"]


def test_polling_continues_after_a_failed_request(modules: Path) -> None:
    program = """
        import { Polling } from "./polling.js";
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
    assert said_by(modules, program) == 2


RUN = """
    import {{ createServer }} from "node:http";
    import {{ Run }} from "./run.js";
    const asked = [];
    const server = createServer(async (request, response) => {{
      asked.push(`${{request.method}} ${{request.url}}`);
      const told = await answer(request.url, response);
      if (told !== undefined) response.end(told);
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
    console.log(JSON.stringify([run.state, asked.sort(), troubles]));
    server.closeAllConnections();
    server.close();
"""
JOB = '{ kind: "job", path: "/v2/default/run", body: {} }'


def run_of(modules: Path, request: str, answer: str) -> Any:
    """Return a run's last state, what the server was asked, what stopping it came to."""
    # The real ones ask for a key in a dialog of the page.
    keys = "export const key = () => null, keyHeaders = () => ({}), askKey = async () => false;"
    (modules / "keys.js").write_text(keys)
    return said_by(modules, RUN.format(request=request, answer=answer))


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
    state, asked, troubles = run_of(modules, JOB, answer)
    assert state == "done"
    assert "POST /v2/default/cancel/a-job" in asked
    assert troubles == ["The disk is full."]


def test_silent_job_is_abandoned_when_stopped_twice(
    modules: Path,
) -> None:
    assert run_of(modules, JOB, "stop(); stop();") == ["stopped", ["POST /v2/default/run"], []]


def test_stopped_openai_request_closes_its_connection(modules: Path) -> None:
    chat = '{ kind: "chat", path: "/v1/chat/completions", body: {}, stream: true }'
    assert run_of(modules, chat, "stop();") == ["stopped", ["POST /v1/chat/completions"], []]

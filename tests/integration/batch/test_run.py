"""`python -m batch run`: answers each line of a file once."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from batch.input.scan import compute_digest
from batch.input.source import LineSource
from batch.output.journal import BatchJournal, JournalHeader
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import (
    ROOT,
    call,
    chat,
    command,
    environment,
    read,
    run,
    text,
    write,
)

# A script entry that answers with the words of the prompt.
ECHO: dict[str, Any] = {}


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    """Echoes prompts, except for one that fails and one that is slow."""
    return script(
        {"when": "fails", "pieces": [{"error": "it was asked to fail"}]},
        {"when": "slow", "pieces": [{"text": "slow", "delay_ms": 300}]},
        ECHO,
        slots=4,
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def count_tokens(output: Path, kind: str) -> int:
    """Return the sum of the prompt or completion tokens in an output."""
    return sum(line["response"]["body"]["usage"][f"{kind}_tokens"] for line in read(output))


def test_run_writes_completions_in_input_order(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [call(f"n{n}", "slow" if n == 0 else f"word {n}") for n in range(40)]
    completed = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert completed.returncode == 0, completed.stderr
    answers = read(out)
    assert [line["custom_id"] for line in answers] == [f"n{n}" for n in range(40)]
    assert [text(line) for line in answers] == ["slow", *(f"word {n}" for n in range(1, 40))]
    for line in answers:
        assert line["id"].startswith("batch_req_")
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"]
        assert line["response"]["body"]["object"] == "text_completion"
    assert b"40 of 40 lines answered" in completed.stderr
    assert completed.stdout == b""
    names = {path.name for path in tmp_path.glob("*.jsonl*")}
    assert names == {"in.jsonl", "out.jsonl", ".out.jsonl.finished"}


def test_unordered_writes_answers_in_completion_order(
    model: Path, tmp_path: Path, out: Path
) -> None:
    lines = [call("slow", "slow"), *(call(f"n{n}") for n in range(40))]
    completed = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out, "--unordered")
    assert completed.returncode == 0, completed.stderr
    answers = [line["custom_id"] for line in read(out)]
    assert answers[0] != "slow"
    assert sorted(answers) == sorted(line["custom_id"] for line in lines)


def test_run_answers_chats(model: Path, tmp_path: Path, out: Path) -> None:
    completed = run(model, "-i", write(tmp_path / "in.jsonl", [chat("a", "word")]), "-o", out)
    assert completed.returncode == 0, completed.stderr
    [line] = read(out)
    assert line["response"]["body"]["object"] == "chat.completion"
    assert "word" in text(line)


@pytest.mark.parametrize(
    ("url", "fields", "kind"),
    [
        ("/v1/responses", {"input": "word"}, "response"),
        (
            "/v1/messages",
            {"max_tokens": 9, "messages": [{"role": "user", "content": "word"}]},
            "message",
        ),
        ("/api/chat", {"messages": [{"role": "user", "content": "word"}]}, "message"),
        ("/api/generate", {"prompt": "word"}, "response"),
        ("/api/embed", {"input": "word"}, "embeddings"),
    ],
)
def test_run_answers_the_routes_of_each_api(
    model: Path, tmp_path: Path, out: Path, url: str, fields: dict[str, Any], kind: str
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": url, "body": fields}
    completed = run(model, "-i", write(tmp_path / "in.jsonl", [line]), "-o", out)
    assert completed.returncode == 0, completed.stderr
    [answer] = read(out)
    body = answer["response"]["body"]
    assert kind in (body.get("object"), body.get("type"), *body)
    if url.startswith("/v1/"):
        assert body["usage"]["output_tokens"] > 0
    assert "word" in json.dumps(body) or kind == "embeddings"


def test_run_answers_embeddings(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [
        {
            "custom_id": f"{n}",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"input": input_path},
        }
        for n, input_path in enumerate(("one", ["one", "two"]))
    ]
    completed = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert completed.returncode == 0, completed.stderr
    single, pair = (line["response"]["body"]["data"] for line in read(out))
    assert [len(single), len(pair)] == [1, 2]
    assert single[0]["embedding"] == pair[0]["embedding"] != pair[1]["embedding"]


def test_run_answers_job_inputs(model: Path, tmp_path: Path, out: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"input": {"prompt": "first", "enable_validation": False}},
        {"id": "mine", "input": {"prompt": "it fails"}},
        {"id": "third", "input": {"openai_route": "/v1/models", "openai_input": {}}},
    ]
    completed = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert completed.returncode == 1, completed.stderr
    first, third = read(out)
    assert (first["id"], first["status"]) == ("line-1", "COMPLETED")
    assert first["output"]["choices"][0]["text"] == "first"
    assert third["output"]["object"] == "list"
    usage = first["output"]["usage"]
    assert (
        f"tokens: {usage['input']} prompt, {usage['output']} completion, without 1 of 2 answers"
        in completed.stderr.decode()
    )
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert (failed["id"], failed["status"]) == ("mine", "FAILED")
    assert "it was asked to fail" in failed["error"]


def test_failed_lines_are_in_the_error_file(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [call("a"), call("b", "it fails"), call("c"), call("d", "fails")]
    errors = tmp_path / "errors.jsonl"
    input_path = write(tmp_path / "in.jsonl", lines)
    completed = run(model, "-i", input_path, "-o", out, "--errors", errors)
    assert completed.returncode == 1
    assert [line["custom_id"] for line in read(out)] == ["a", "c"]
    failed = read(errors)
    assert [line["custom_id"] for line in failed] == ["b", "d"]
    assert failed[0]["response"]["status_code"] == 500
    assert "it was asked to fail" in failed[0]["response"]["body"]["error"]["message"]
    assert failed[0]["error"] is None
    assert b"2 of 4 lines answered" in completed.stderr
    assert str(errors).encode() in completed.stderr


def test_summary_has_the_tokens_of_resumed_lines_once(
    model: Path, tmp_path: Path, out: Path
) -> None:
    lines = [call(f"n{n}", "it fails" if n == 3 else f"word {n}") for n in range(20)]
    input_path = write(tmp_path / "in.jsonl", lines)
    whole = tmp_path / "whole.jsonl"
    assert run(model, "-i", input_path, "-o", whole).returncode == 1
    journal = BatchJournal(out.with_name("out.jsonl.partial"))
    journal.begin(JournalHeader(compute_digest(LineSource(input_path, 1_000)), 20))
    for number, line in enumerate(read(whole)[:3], 1):
        journal.add(number, json.dumps(line).encode(), ok=True)
    journal.close()
    completed = run(model, "-i", input_path, "-o", out)
    assert b"resuming: 3 of 20 lines are answered" in completed.stderr
    prompt, completion = count_tokens(whole, "prompt"), count_tokens(whole, "completion")
    assert min(prompt, completion) >= 19
    assert f"\ntokens: {prompt} prompt, {completion} completion\n" in completed.stderr.decode()
    note = json.loads(out.with_name(".out.jsonl.finished").read_bytes())
    assert note["tokens"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "answers": 19,
        "answers_without_counts": 0,
    }


@pytest.mark.long
def test_run_retries_lines_after_an_engine_crash(
    script: ScriptFactory, tmp_path: Path, out: Path
) -> None:
    """Lines of an engine process that dies are retried."""
    model = script({"when": "deadly", "pieces": [{"signal": "SIGKILL"}]}, ECHO, slots=2)
    lines = [call("good", "good"), call("bad", "deadly")]
    input_path = write(tmp_path / "in.jsonl", lines)
    completed = run(model, "-i", input_path, "-o", out, BATCH_TRIES="2", BATCH_AT_ONCE="1")
    assert completed.returncode == 1, completed.stderr
    assert b"1 retried" in completed.stderr
    assert [line["custom_id"] for line in read(out)] == ["good"]
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert "was killed by SIGKILL" in failed["response"]["body"]["error"]["message"]


def test_line_fails_after_three_crashes_for_any_number_of_attempts(
    script: ScriptFactory, tmp_path: Path, out: Path
) -> None:
    model = script({"when": "deadly", "pieces": [{"signal": "SIGKILL"}]}, ECHO, slots=2)
    input_path = write(tmp_path / "in.jsonl", [call("good", "good"), call("bad", "deadly")])
    completed = run(model, "-i", input_path, "-o", out, BATCH_TRIES="100")
    assert completed.returncode == 1, completed.stderr
    assert completed.stderr.count(b"killed by SIGKILL (crash") == 3
    assert [line["custom_id"] for line in read(out)] == ["good"]
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert "was killed by SIGKILL" in failed["response"]["body"]["error"]["message"]


@pytest.mark.long
def test_run_with_a_dead_engine_can_be_resumed(
    script: ScriptFactory, model: Path, tmp_path: Path, out: Path
) -> None:
    deadly = script(slots=1, load_signal="SIGSEGV")
    input_path = write(tmp_path / "in.jsonl", [call("a", "word"), call("b", "word")])
    completed = run(deadly, "-i", input_path, "-o", out, MODEL_NAME="m")
    assert completed.returncode == 3
    assert b"the engine crashed 5 times in a row while it loaded the model" in completed.stderr
    assert b"0 of 2 lines are answered; run the same command again to resume" in completed.stderr
    assert not out.exists()
    completed = run(model, "-i", input_path, "-o", out, MODEL_NAME="m")
    assert completed.returncode == 0, completed.stderr
    assert [text(line) for line in read(out)] == ["word", "word"]


def test_run_reports_a_model_that_does_not_load(tmp_path: Path, out: Path) -> None:
    input_path = write(tmp_path / "in.jsonl", [call("a")])
    bad = tmp_path / "bad.json"
    bad.write_text("no script")
    completed = run(bad, "-i", input_path, "-o", out)
    assert completed.returncode == 3
    assert b"MODEL_PATH" in completed.stderr
    assert b"Traceback" not in completed.stderr
    assert not out.exists()


def test_run_checks_all_lines_before_loading_the_model(tmp_path: Path, out: Path) -> None:
    """The model cannot be loaded, but the reported problems are those of the lines."""
    lines = [
        call("a"),
        call("a"),
        call("b", stream=True),
        call("c", temperature=9),
        chat("d"),
        {"custom_id": "e", "method": "POST", "url": "/v1/nothing", "body": {}},
        call("f", model="another"),
    ]
    bad = tmp_path / "bad.json"
    bad.write_text("no script")
    completed = run(bad, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert completed.returncode == 2
    output = completed.stderr.decode().splitlines()
    assert [line.partition(":")[0] for line in output] == [f"line {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert "custom_id is the same as on line 1" in output[0]
    assert "body.stream must be false" in output[1]
    assert "temperature must be" in output[2]
    assert "the line is for /v1/chat/completions" in output[3]
    assert [*tmp_path.glob("out*")] == []


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\n" + json.dumps(call("a")).encode(), "line 1: the line is empty"),
        (json.dumps(call("a")).encode() + b"\n\n" + json.dumps(call("b")).encode(), "line 2: "),
        (b"\xff\xfe{\x00}\x00", "line 1: the line is not JSON"),
        (json.dumps(call("a")).encode()[:-5], "line 1: the line is not JSON"),
        (b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":"\xff"}', "not JSON"),
        (json.dumps(call("a", "x" * 1_100_000)).encode(), "longer than 1,000,000 bytes"),
    ],
)
def test_invalid_input_is_reported_in_one_message(
    model: Path, tmp_path: Path, out: Path, content: bytes, output: str
) -> None:
    input_path = tmp_path / "in.jsonl"
    input_path.write_bytes(content)
    completed = run(model, "-i", input_path, "-o", out, MAX_BODY_MB="1")
    assert completed.returncode == 2
    assert output in completed.stderr.decode()
    assert len(completed.stderr.decode().splitlines()) == 1
    assert [*tmp_path.glob("out*")] == []


@pytest.mark.long
def test_run_accepts_crlf_and_a_byte_order_mark(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = tmp_path / "in.jsonl"
    input_path.write_bytes(
        b"\xef\xbb\xbf" + b"".join(json.dumps(call(f"{n}")).encode() + b"\r\n" for n in range(3))
    )
    assert run(model, "-i", input_path, "-o", out).returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["0", "1", "2"]


def test_run_rejects_a_file_that_is_too_large(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = tmp_path / "in.jsonl"
    with input_path.open("wb") as file:
        file.truncate(1_000_001)
    completed = run(model, "-i", input_path, "-o", out, BATCH_MAX_MB="1")
    assert completed.returncode == 2
    assert completed.stderr.decode() == f"{input_path} is larger than 1 MB (BATCH_MAX_MB)\n"


def test_run_does_not_overwrite_a_finished_output(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = write(tmp_path / "in.jsonl", [call("a", "first")])
    assert run(model, "-i", input_path, "-o", out).returncode == 0
    previous = out.read_bytes()
    write(input_path, [call("a", "second")])
    completed = run(model, "-i", input_path, "-o", out)
    assert completed.returncode == 2
    assert completed.stderr.decode() == f"{out} exists already; --force replaces it\n"
    assert out.read_bytes() == previous
    assert run(model, "-i", input_path, "-o", out, "--force").returncode == 0
    assert text(read(out)[0]) == "second"


def test_repeated_command_reports_that_all_lines_are_answered(
    model: Path, tmp_path: Path, out: Path
) -> None:
    input_path = write(tmp_path / "in.jsonl", [call(f"{n}", "first") for n in range(3)])
    assert run(model, "-i", input_path, "-o", out).returncode == 0
    previous = out.read_bytes(), out.stat().st_mtime_ns
    # The model is not loaded.
    model.write_text(json.dumps({"load_error": "the model was loaded"}))
    completed = run(model, "-i", input_path, "-o", out)
    assert (completed.returncode, completed.stdout) == (0, b"")
    prompt, completion = count_tokens(out, "prompt"), count_tokens(out, "completion")
    assert completed.stderr.decode() == (
        f"3 of 3 lines answered already\ntokens: {prompt} prompt, {completion} completion\n"
    )
    assert (out.read_bytes(), out.stat().st_mtime_ns) == previous


@pytest.mark.long
def test_repeated_command_reports_the_failed_lines(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = write(tmp_path / "in.jsonl", [call("a", "first"), call("b", "fails")])
    assert run(model, "-i", input_path, "-o", out).returncode == 1
    completed = run(model, "-i", input_path, "-o", out)
    assert completed.returncode == 1
    errors = out.with_name("out.errors.jsonl")
    lines = completed.stderr.decode().splitlines()
    assert lines[0] == "2 of 2 lines answered already"
    assert lines[2:] == [f"1 of them failed: {errors}"]


@pytest.mark.long
def test_changed_output_does_not_count_as_finished(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = write(tmp_path / "in.jsonl", [call("a", "first")])
    assert run(model, "-i", input_path, "-o", out).returncode == 0
    out.write_bytes(b"something else\n")
    completed = run(model, "-i", input_path, "-o", out)
    assert completed.returncode == 2
    assert completed.stderr.decode() == f"{out} exists already; --force replaces it\n"


@pytest.mark.long_except(
    "arguments0-none.jsonl does not exist",
    "arguments3-is the input and would be overwritten",
    "arguments7-cannot be read",
)
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("-i", "none.jsonl", "-o", "out.jsonl"), "none.jsonl does not exist"),
        (("-i", ".", "-o", "out.jsonl"), ". is not a file"),
        (("-i", "in.jsonl", "-o", "in.jsonl"), "in.jsonl is the input and would be overwritten"),
        (("-i", "in.jsonl", "-o", "./x/../in.jsonl"), "is the input and would be overwritten"),
        (
            ("-i", "in.jsonl", "-o", "none/out.jsonl"),
            "the folder none for none/out.jsonl does not exist",
        ),
        (
            ("-i", "in.jsonl", "-o", "out.jsonl", "--errors", "out.jsonl"),
            "the output and the error file are the same: out.jsonl",
        ),
        (
            ("-i", "in.jsonl", "-o", "out.jsonl", "--errors", "in.jsonl"),
            "in.jsonl is the input and would be overwritten",
        ),
        (("-i", "http://127.0.0.1:9/in.jsonl", "-o", "out.jsonl"), "cannot be read"),
    ],
)
def test_run_rejects_invalid_arguments(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], output: str
) -> None:
    write(tmp_path / "in.jsonl", [call("a")])
    (tmp_path / "x").mkdir()
    previous = (tmp_path / "in.jsonl").read_bytes()
    completed = subprocess.run(
        command(*arguments, "--force"),
        env=environment(model, PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 2
    assert output in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
    assert (tmp_path / "in.jsonl").read_bytes() == previous
    assert not (tmp_path / "out.jsonl").exists()


def test_run_from_stdin_to_stdout(model: Path, tmp_path: Path) -> None:
    lines = "".join(json.dumps(call(str(n), f"word {n}")) + "\n" for n in range(5))
    completed = run(model, "-i", "-", "-o", "-", stdin=lines.encode())
    assert completed.returncode == 0, completed.stderr
    answers = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [text(line) for line in answers] == [f"word {n}" for n in range(5)]


@pytest.mark.long
def test_run_reads_input_from_a_web_server(model: Path, tmp_path: Path, out: Path) -> None:
    content = json.dumps(call("a", "from afar")).encode()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/in.jsonl" else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        completed = run(model, "-i", f"{url}/in.jsonl", "-o", out)
        assert completed.returncode == 0, completed.stderr
        missing = run(model, "-i", f"{url}/none.jsonl", "-o", tmp_path / "other.jsonl")
        server.shutdown()
    assert text(read(out)[0]) == "from afar"
    assert missing.returncode == 2
    assert missing.stderr.decode() == f"{url}/none.jsonl answered with 404\n"


def test_run_shows_a_progress_bar_on_a_terminal(model: Path, tmp_path: Path, out: Path) -> None:
    input_path = write(tmp_path / "in.jsonl", [call(str(n), "slow") for n in range(8)])
    master_fd, slave_fd = pty.openpty()
    with subprocess.Popen(
        command("-i", input_path, "-o", out),
        env=environment(model, TERM="xterm", COLUMNS="120"),
        cwd=ROOT,
        stderr=slave_fd,
    ) as process:
        os.close(slave_fd)
        output = b""
        try:
            while chunk := os.read(master_fd, 65536):
                output += chunk
        except OSError:
            # Reading fails when the other side of the terminal is closed.
            pass
        assert process.wait(60) == 0
    os.close(master_fd)
    assert "━".encode() in output
    assert b"8/8" in output
    assert b"lines/s" in output

"""`python -m batch run`: each line of a file answered once."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

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

# A command that has nothing to do; most of it is Python's start on a busy machine.
REPEAT_LIMIT_S = 15
# Says the prompt's words back.
ECHO: dict[str, Any] = {}


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    """Says prompts back; three of them go wrong, each in its own way."""
    return script(
        {"when": "fails", "pieces": [{"error": "it was asked to fail"}]},
        {"when": "slow", "pieces": [{"text": "slow", "delay_ms": 300}]},
        ECHO,
        slots=4,
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_completions_in_the_input_s_order(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [call(f"n{n}", "slow" if n == 0 else f"word {n}") for n in range(40)]
    ran = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert ran.returncode == 0, ran.stderr
    found = read(out)
    assert [line["custom_id"] for line in found] == [f"n{n}" for n in range(40)]
    assert [text(line) for line in found] == ["slow", *(f"word {n}" for n in range(1, 40))]
    for line in found:
        assert line["id"].startswith("batch_req_")
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"]
        assert line["response"]["body"]["object"] == "text_completion"
    assert b"40 of 40 lines answered" in ran.stderr
    assert ran.stdout == b""
    names = {path.name for path in tmp_path.glob("*.jsonl*")}
    assert names == {"in.jsonl", "out.jsonl", ".out.jsonl.finished"}


def test_unordered_answers_come_as_they_came(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [call("slow", "slow"), *(call(f"n{n}") for n in range(40))]
    ran = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out, "--unordered")
    assert ran.returncode == 0, ran.stderr
    found = [line["custom_id"] for line in read(out)]
    assert found[0] != "slow"
    assert sorted(found) == sorted(line["custom_id"] for line in lines)


def test_chats(model: Path, tmp_path: Path, out: Path) -> None:
    ran = run(model, "-i", write(tmp_path / "in.jsonl", [chat("a", "word")]), "-o", out)
    assert ran.returncode == 0, ran.stderr
    [line] = read(out)
    assert line["response"]["body"]["object"] == "chat.completion"
    assert "word" in text(line)


def test_embeddings(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/embeddings", "body": {"input": given}}
        for n, given in enumerate(("one", ["one", "two"]))
    ]
    ran = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert ran.returncode == 0, ran.stderr
    alone, both = (line["response"]["body"]["data"] for line in read(out))
    assert [len(alone), len(both)] == [1, 2]
    assert alone[0]["embedding"] == both[0]["embedding"] != both[1]["embedding"]


def test_job_inputs(model: Path, tmp_path: Path, out: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"input": {"prompt": "first", "enable_validation": False}},
        {"id": "mine", "input": {"prompt": "it fails"}},
        {"id": "third", "input": {"openai_route": "/v1/models", "openai_input": {}}},
    ]
    ran = run(model, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert ran.returncode == 1, ran.stderr
    first, third = read(out)
    assert (first["id"], first["status"]) == ("line-1", "COMPLETED")
    assert first["output"]["choices"][0]["text"] == "first"
    assert third["output"]["object"] == "list"
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert (failed["id"], failed["status"]) == ("mine", "FAILED")
    assert "it was asked to fail" in failed["error"]


def test_failed_lines_have_a_file_of_their_own(model: Path, tmp_path: Path, out: Path) -> None:
    lines = [call("a"), call("b", "it fails"), call("c"), call("d", "fails")]
    errors = tmp_path / "errors.jsonl"
    given = write(tmp_path / "in.jsonl", lines)
    ran = run(model, "-i", given, "-o", out, "--errors", errors)
    assert ran.returncode == 1
    assert [line["custom_id"] for line in read(out)] == ["a", "c"]
    failed = read(errors)
    assert [line["custom_id"] for line in failed] == ["b", "d"]
    assert failed[0]["response"]["status_code"] == 500
    assert "it was asked to fail" in failed[0]["response"]["body"]["error"]["message"]
    assert failed[0]["error"] is None
    assert b"2 of 4 lines answered" in ran.stderr
    assert str(errors).encode() in ran.stderr


def test_what_may_pass_is_tried_again(script: ScriptFactory, tmp_path: Path, out: Path) -> None:
    """An engine process that dies takes its lines with it, and they are asked once more."""
    model = script({"when": "deadly", "pieces": [{"signal": "SIGKILL"}]}, ECHO, slots=2)
    lines = [call("good", "good"), call("bad", "deadly")]
    given = write(tmp_path / "in.jsonl", lines)
    ran = run(model, "-i", given, "-o", out, BATCH_TRIES="2", BATCH_AT_ONCE="1")
    assert ran.returncode == 1, ran.stderr
    assert b"1 retried" in ran.stderr
    assert [line["custom_id"] for line in read(out)] == ["good"]
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert "was killed by SIGKILL" in failed["response"]["body"]["error"]["message"]


def test_line_that_ran_at_three_crashes_fails_whatever_the_number_of_tries(
    script: ScriptFactory, tmp_path: Path, out: Path
) -> None:
    model = script({"when": "deadly", "pieces": [{"signal": "SIGKILL"}]}, ECHO, slots=2)
    given = write(tmp_path / "in.jsonl", [call("good", "good"), call("bad", "deadly")])
    ran = run(model, "-i", given, "-o", out, BATCH_TRIES="100")
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.count(b"killed by SIGKILL (crash") == 3
    assert [line["custom_id"] for line in read(out)] == ["good"]
    [failed] = read(tmp_path / "out.errors.jsonl")
    assert "was killed by SIGKILL" in failed["response"]["body"]["error"]["message"]


def test_an_engine_that_is_dead_ends_the_run_and_not_the_batch(
    script: ScriptFactory, model: Path, tmp_path: Path, out: Path
) -> None:
    deadly = script(slots=1, load_signal="SIGSEGV")
    given = write(tmp_path / "in.jsonl", [call("a", "word"), call("b", "word")])
    ran = run(deadly, "-i", given, "-o", out, MODEL_NAME="m")
    assert ran.returncode == 3
    assert b"the engine crashed 5 times in a row while it loaded the model" in ran.stderr
    assert b"0 of 2 lines are answered; run the same command again to resume" in ran.stderr
    assert not out.exists()
    ran = run(model, "-i", given, "-o", out, MODEL_NAME="m")
    assert ran.returncode == 0, ran.stderr
    assert [text(line) for line in read(out)] == ["word", "word"]


def test_a_model_that_does_not_load(tmp_path: Path, out: Path) -> None:
    given = write(tmp_path / "in.jsonl", [call("a")])
    bad = tmp_path / "bad.json"
    bad.write_text("no script")
    ran = run(bad, "-i", given, "-o", out)
    assert ran.returncode == 3
    assert b"MODEL_PATH" in ran.stderr
    assert b"Traceback" not in ran.stderr
    assert not out.exists()


def test_every_line_is_looked_at_before_the_model_is_loaded(tmp_path: Path, out: Path) -> None:
    """The model would fail to load, and that is not what is said."""
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
    ran = run(bad, "-i", write(tmp_path / "in.jsonl", lines), "-o", out)
    assert ran.returncode == 2
    said = ran.stderr.decode().splitlines()
    assert [line.partition(":")[0] for line in said] == [f"line {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert "custom_id is the same as on line 1" in said[0]
    assert "body.stream must be false" in said[1]
    assert "temperature must be" in said[2]
    assert "the line is for /v1/chat/completions" in said[3]
    assert [*tmp_path.glob("out*")] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n", "line 1: the line is empty"),
        (json.dumps(call("a")).encode() + b"\n\n" + json.dumps(call("b")).encode(), "line 2: "),
        (b"\xff\xfe{\x00}\x00", "line 1: the line is not JSON"),
        (json.dumps(call("a")).encode()[:-5], "line 1: the line is not JSON"),
        (b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":"\xff"}', "not JSON"),
        (json.dumps(call("a", "x" * 1_100_000)).encode(), "longer than 1,000,000 bytes"),
    ],
)
def test_bad_input_is_one_message_and_no_output(
    model: Path, tmp_path: Path, out: Path, content: bytes, said: str
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_bytes(content)
    ran = run(model, "-i", given, "-o", out, MAX_BODY_MB="1")
    assert ran.returncode == 2
    assert said in ran.stderr.decode()
    assert len(ran.stderr.decode().splitlines()) == 1
    assert [*tmp_path.glob("out*")] == []


def test_windows_line_ends_and_a_byte_order_mark(model: Path, tmp_path: Path, out: Path) -> None:
    given = tmp_path / "in.jsonl"
    given.write_bytes(
        b"\xef\xbb\xbf" + b"".join(json.dumps(call(f"{n}")).encode() + b"\r\n" for n in range(3))
    )
    assert run(model, "-i", given, "-o", out).returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["0", "1", "2"]


def test_a_file_that_is_too_large(model: Path, tmp_path: Path, out: Path) -> None:
    given = tmp_path / "in.jsonl"
    with given.open("wb") as file:
        file.truncate(1_000_001)
    ran = run(model, "-i", given, "-o", out, BATCH_MAX_MB="1")
    assert ran.returncode == 2
    assert ran.stderr.decode() == f"{given} is larger than 1 MB (BATCH_MAX_MB)\n"


def test_what_is_finished_is_not_overwritten(model: Path, tmp_path: Path, out: Path) -> None:
    given = write(tmp_path / "in.jsonl", [call("a", "first")])
    assert run(model, "-i", given, "-o", out).returncode == 0
    before = out.read_bytes()
    write(given, [call("a", "second")])
    ran = run(model, "-i", given, "-o", out)
    assert ran.returncode == 2
    assert ran.stderr.decode() == f"{out} exists already; --force replaces it\n"
    assert out.read_bytes() == before
    assert run(model, "-i", given, "-o", out, "--force").returncode == 0
    assert text(read(out)[0]) == "second"


def test_repeated_command_says_that_all_lines_are_answered(
    model: Path, tmp_path: Path, out: Path
) -> None:
    given = write(tmp_path / "in.jsonl", [call(f"{n}", "first") for n in range(3)])
    assert run(model, "-i", given, "-o", out).returncode == 0
    before = out.read_bytes(), out.stat().st_mtime_ns
    began = time.monotonic()
    ran = run(model, "-i", given, "-o", out)
    assert (ran.returncode, ran.stdout) == (0, b"")
    assert ran.stderr == b"3 of 3 lines answered already\n"
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before
    # Nothing is loaded for it.
    assert time.monotonic() - began < REPEAT_LIMIT_S


def test_repeated_command_says_which_lines_had_failed(
    model: Path, tmp_path: Path, out: Path
) -> None:
    given = write(tmp_path / "in.jsonl", [call("a", "first"), call("b", "fails")])
    assert run(model, "-i", given, "-o", out).returncode == 1
    ran = run(model, "-i", given, "-o", out)
    assert ran.returncode == 1
    errors = out.with_name("out.errors.jsonl")
    assert ran.stderr.decode() == f"2 of 2 lines answered already\n1 of them failed: {errors}\n"


def test_output_that_was_changed_since_is_not_taken_for_finished(
    model: Path, tmp_path: Path, out: Path
) -> None:
    given = write(tmp_path / "in.jsonl", [call("a", "first")])
    assert run(model, "-i", given, "-o", out).returncode == 0
    out.write_bytes(b"something else\n")
    ran = run(model, "-i", given, "-o", out)
    assert ran.returncode == 2
    assert ran.stderr.decode() == f"{out} exists already; --force replaces it\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_what_cannot_be_is_refused(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    write(tmp_path / "in.jsonl", [call("a")])
    (tmp_path / "x").mkdir()
    before = (tmp_path / "in.jsonl").read_bytes()
    ran = subprocess.run(
        command(*arguments, "--force"),
        env=environment(model, PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert (tmp_path / "in.jsonl").read_bytes() == before
    assert not (tmp_path / "out.jsonl").exists()


def test_from_the_standard_input_to_the_standard_output(model: Path, tmp_path: Path) -> None:
    lines = "".join(json.dumps(call(str(n), f"word {n}")) + "\n" for n in range(5))
    ran = run(model, "-i", "-", "-o", "-", stdin=lines.encode())
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [text(line) for line in found] == [f"word {n}" for n in range(5)]


def test_from_a_web_server(model: Path, tmp_path: Path, out: Path) -> None:
    content = json.dumps(call("a", "from afar")).encode()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/in.jsonl" else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        ran = run(model, "-i", f"{url}/in.jsonl", "-o", out)
        assert ran.returncode == 0, ran.stderr
        missing = run(model, "-i", f"{url}/none.jsonl", "-o", tmp_path / "other.jsonl")
        server.shutdown()
    assert text(read(out)[0]) == "from afar"
    assert missing.returncode == 2
    assert missing.stderr.decode() == f"{url}/none.jsonl answered with 404\n"


def test_a_terminal_shows_a_bar(model: Path, tmp_path: Path, out: Path) -> None:
    given = write(tmp_path / "in.jsonl", [call(str(n), "slow") for n in range(8)])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("-i", given, "-o", out),
        env=environment(model, TERM="xterm", COLUMNS="120"),
        cwd=ROOT,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 65536):
                said += chunk
        except OSError:
            # How a terminal ends whose other side has gone.
            pass
        assert process.wait(60) == 0
    os.close(ours)
    assert "━".encode() in said
    assert b"8/8" in said
    assert b"lines/s" in said

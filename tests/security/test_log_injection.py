"""Text that would control a terminal, sent by clients, workers, models, batches and file names.

Each attack sends an escape sequence, its 8-bit form (C1) and a mark that reorders text (bidi). What
reaches a terminal or a log has printable characters and line ends alone.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import quote

import pytest

from batch.queue.batch_manifest import BatchHeader, BatchManifest
from batch.queue.result_bucket import ResultBucket
from tests.acceptance.test_job_terminal import run_job_on_terminal
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import ROOT, call, command, environment, write
from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.security.collecting import collected
from tests.security.raw_http import exchange
from tests.terminal import run_on_terminal
from tests.waiting import wait_until

# Clears the screen in both forms, sets the window's title, and writes from right to left.
HOSTILE = "\x1b[2J\x9b2J\x1b]0;title\x07\u202edecoy"
STYLES = ["json", "console"]


def assert_harmless(lines: list[str]) -> None:
    assert [line for line in lines if not line.isprintable()] == []


async def wait_for_log_line(server: EmulatorProcess, words: str) -> None:
    await wait_until(lambda: any(words in line for line in server.lines))


@pytest.mark.long_except("console")
@pytest.mark.parametrize("style", STYLES)
async def test_ping_reason_with_escape_sequences_is_escaped_in_the_log(style: str) -> None:
    async with run_emulator({"ENGINE": "scripted", "LOG_FORMAT": style}, "--port", "0") as server:
        await server.wait_until_listening()
        target = f"/v2/default/ping/w?status=unhealthy&check=gpu&reason={quote(HOSTILE)}"
        assert (await exchange(server.port, "GET", target)).status == 200
        await wait_for_log_line(server, "is unhealthy")
        assert_harmless(server.lines)


@pytest.mark.long_except("console")
@pytest.mark.parametrize("style", STYLES)
async def test_worker_name_and_error_with_escape_sequences_are_escaped_in_the_log(
    style: str,
) -> None:
    async with run_emulator({"ENGINE": "scripted", "LOG_FORMAT": style}, "--port", "0") as server:
        await server.wait_until_listening()
        name, header = quote(f"w{HOSTILE}"), [("Host", "127.0.0.1")]
        json_header = [*header, ("Content-Type", "application/json")]
        sent = await exchange(
            server.port, "POST", "/v2/other/run", json_header, b'{"input": {"a": 1}}'
        )
        job_id = json.loads(sent.body)["id"]
        taken = await exchange(server.port, "GET", f"/v2/other/job-take/{name}")
        assert json.loads(taken.body)["id"] == job_id
        body = json.dumps({"error": f"it broke {HOSTILE}"}).encode()
        path = f"/v2/other/job-done/{name}/{job_id}"
        assert (await exchange(server.port, "POST", path, json_header, body)).status == 200
        await wait_for_log_line(server, "FAILED")
        assert any("it broke" in line for line in server.lines)
        assert_harmless(server.lines)


@pytest.mark.long_except("json")
@pytest.mark.parametrize("style", STYLES)
async def test_output_of_a_launched_worker_is_escaped_in_the_log(
    style: str, tmp_path: Path
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(f"import sys\nsys.stderr.write({'to the log ' + HOSTILE!r} + '\\n')\n")
    settings = {
        "ENGINE": "scripted",
        "LOG_FORMAT": style,
        "WORKERS": "1",
        "WORKERS_MIN": "1",
        "WORKER_COMMAND": f"python {shlex.quote(str(program))}",
    }
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        await wait_for_log_line(server, "to the log")
        assert_harmless(server.lines)


@pytest.mark.long_except("True")
@pytest.mark.parametrize("stream", [True, False])
def test_model_answer_with_escape_sequences_does_not_control_the_terminal(
    tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"answers": [{"pieces": ["an answer ", HOSTILE]}]}
    monkeypatch.setattr("tests.acceptance.test_job_terminal.SCRIPT", script)
    job_input = {"prompt": "hi", "sampling_params": {"stream": stream}}
    code, screen = run_job_on_terminal(tmp_path, job_input)
    assert code == 0, screen
    assert "an answer" in screen
    assert_harmless(screen.split("\n"))


def batch_on_a_terminal(model: Path, folder: Path, name: str) -> tuple[int, list[str]]:
    settings = environment(model, PYTHONPATH=str(ROOT))
    words = command("-i", name, "-o", "out.jsonl")
    code, screen = run_on_terminal(words, cwd=folder, environment=settings)
    return code, screen.replace("\r\n", "\n").split("\n")


def test_batch_line_with_escape_sequences_is_escaped_in_the_message(
    tmp_path: Path, script: ScriptFactory
) -> None:
    line = call("a")
    line["method"] = HOSTILE
    write(tmp_path / "in.jsonl", [line])
    code, screen = batch_on_a_terminal(script({}), tmp_path, "in.jsonl")
    assert code == 2
    # The terminal's own cursor control aside: rich hides the cursor while it checks the lines.
    (message,) = [each for each in screen if "method must be POST" in each]
    assert "\x9b" not in message
    assert "\u202e" not in message


def test_file_name_with_escape_sequences_is_escaped_in_the_message(
    tmp_path: Path, script: ScriptFactory
) -> None:
    code, screen = batch_on_a_terminal(script({}), tmp_path, f"no{HOSTILE}.jsonl")
    assert code == 2
    assert any("does not exist" in each for each in screen)
    assert_harmless(screen)


@pytest.mark.long
def test_missing_ids_of_a_manifest_are_escaped_by_collect(
    place: ResultBucket, tmp_path: Path
) -> None:
    ids = [f"id{HOSTILE}", "id\nall lines answered"]
    manifest = BatchManifest(place, "evening")
    assert manifest.create(BatchHeader("digest", 2, "https://queue"), iter(ids))
    code, screen = collected(place, "evening", tmp_path / "out.jsonl")
    assert code == 3
    (message,) = screen
    assert message.startswith("2 of 2 lines have no answer yet: id")
    assert message.isprintable()


def test_repository_file_name_is_escaped_in_download_progress(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from handler.models.hub import _progress_bar, _progress_lines

    bar = _progress_lines(f"model{HOSTILE}.gguf")(total=10_000_000, unit="B")
    bar.update(10_000_000)
    bar.close()
    with _progress_bar()(total=1, desc=f"model{HOSTILE}.gguf", disable=False) as bar:
        bar.update(1)
    screen = capfd.readouterr().err
    assert "model" in screen
    # tqdm itself goes back to the start of the line.
    assert_harmless(screen.replace("\r", "").split("\n"))

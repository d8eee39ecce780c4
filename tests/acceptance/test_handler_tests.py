"""`python -m emulator test` and `reset` with the real SDK, each as its own process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.acceptance.pages import blocks, pages
from tests.acceptance.test_user_handler import ENDPOINT, HandlerServer
from tests.integration.emulator.processes import build_environment
from tests.waiting import PATIENCE

WAIT_S = 50 * PATIENCE
# RunPod's mock-worker, as far as its tests need it.
MOCK_WORKER = """\
import os, time
import runpod

def handler(job):
    job_input = job["input"]
    print("input:", job_input)
    if job_input.get("mock_crash"):
        os._exit(3)
    if job_input.get("mock_error"):
        raise ValueError("Mock error")
    time.sleep(job_input.get("mock_delay", 0))
    return job_input.get("mock_return", os.environ.get("GREETING"))

runpod.serverless.start({"handler": handler})
"""


def write_project(folder: Path, tests: Any, handler: str = MOCK_WORKER) -> Path:
    """Write a handler and its tests to a new project folder; return it."""
    (folder / "home").mkdir()
    project = folder / "my project"
    project.mkdir()
    (project / "handler.py").write_text(handler)
    (project / "tests.json").write_text(json.dumps(tests))
    return project


def environment_of(project: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return build_environment({"HOME": str(project.parent / "home"), **settings})


def command(project: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the emulator in a project's folder; check that its handler has ended."""
    done = subprocess.run(
        [sys.executable, "-m", "emulator", *arguments],
        env=environment_of(project, settings),
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert processes_in(project) == []
    return done


def processes_in(project: Path) -> list[int]:
    """Return the processes whose working folder is the project's."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.resolve() == project:
                pids.append(int(entry.parent.name))
        except OSError:
            continue
    return pids


def parse_table(output: str) -> dict[str, list[str]]:
    """Return the rows of the printed table by the names of the tests."""
    rows = re.findall(r"^(\S+) +(PASS|FAIL) +(\S+) +(?:[\d.]+ s|-)$", output, re.M)
    return {name: rest for name, *rest in rows}


def test_example_of_the_documentation(tmp_path: Path) -> None:
    (page,) = (page for page in pages() if page.name == "handler.md")
    texts = [block.text for block in blocks(page)]
    (handler,) = (text for text in texts if text.startswith("# handler.py"))
    (tests,) = (text for text in texts if '"tests": [' in text)
    (expected,) = (text for text in texts if text.startswith("Testing handler.py"))
    project = write_project(tmp_path, json.loads(tests), handler)
    # The settings of the shell have no effect on the server of the tests.
    done = command(
        project, "test", "--junit-xml", "results.xml", API_KEYS="a-key", FAULTS_PER_REQUEST="on"
    )
    assert (done.returncode, done.stderr) == (1, "")
    time = re.compile(r" +[\d.]+ s$", re.M)
    assert time.sub("", done.stdout) == time.sub("", expected)
    (suite,) = ElementTree.parse(project / "results.xml").getroot()  # noqa: S314 - our own file
    assert [(case.attrib["name"], len(case)) for case in suite] == [
        ("greets", 0),
        ("needs_a_name", 0),
        ("greets_politely", 1),
    ]


@pytest.mark.long
def test_input_of_the_sdks_file_is_the_one_test_without_a_tests_file(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"tests": []})
    (project / "tests.json").unlink()
    (project / "src").mkdir()
    (project / "handler.py").rename(project / "src" / "handler.py")
    (project / ".env").write_text("GREETING=hello\n")
    test_input = project / "test_input.json"
    test_input.write_text(json.dumps({"id": "local", "input": {"x": 1}}))
    done = command(project, "test", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Testing handler.py with test_input.json\n")
    assert parse_table(done.stdout) == {"test_input": ["PASS", "COMPLETED"]}


@pytest.mark.long
def test_failures_have_their_reasons_and_the_next_tests_run(tmp_path: Path) -> None:
    project = write_project(
        tmp_path,
        {
            "tests": [
                {
                    "name": "differs",
                    "input": {"mock_return": {"a": 1, "b": [1, 2]}},
                    "expected_output": {"b": [1, 3], "a": 1},
                },
                {"name": "raises", "input": {"mock_error": True}},
                {"name": "slow", "input": {"mock_delay": 300}, "timeout": 2_500},
                {"name": "crashes", "input": {"mock_crash": True}},
                {"name": "last", "input": {"x": 1}, "expected_output": "hello"},
            ],
            "config": {"env": [{"key": "GREETING", "value": "hello"}]},
        },
    )
    # The variables of the file come before those of the shell.
    done = command(project, "test", "./handler.py", "--verbose", GREETING="from the shell")
    assert done.returncode == 1, done.stdout + done.stderr
    assert parse_table(done.stdout) == {
        "differs": ["FAIL", "COMPLETED"],
        "raises": ["FAIL", "FAILED"],
        "slow": ["FAIL", "CANCELLED"],
        "crashes": ["FAIL", "FAILED"],
        "last": ["PASS", "COMPLETED"],
    }
    _, differs, raises, slow, crashes = done.stdout.split("\nFAIL ")
    assert differs.startswith("differs\nthe output differs\n--- expected\n+++ actual\n")
    assert '   "b": [\n     1,\n-    3\n+    2\n' in differs
    assert "input: {'mock_return'" in differs
    assert "ValueError: Mock error" in raises
    assert "\\n" not in raises
    assert "the job did not end within 2500 ms (timeout) and was cancelled" in slow
    assert "its worker exited with code 3" in crashes
    assert "1 passed, 4 failed in" in crashes
    # --verbose
    assert "Mock error" in done.stderr


def test_handler_that_does_not_start_fails_all_tests_with_one_reason(tmp_path: Path) -> None:
    tests = {"tests": [{"name": name, "input": {}} for name in "abc"]}
    project = write_project(tmp_path, tests, "import a_missing_package\n")
    done = command(project, "test")
    assert (done.returncode, done.stderr) == (1, "")
    assert parse_table(done.stdout) == {name: ["FAIL", "-"] for name in "abc"}
    reason = (
        "handler.py did not start: it exited with code 1; its last line: ModuleNotFoundError: No "
        "module named 'a_missing_package'"
    )
    assert done.stdout.count(reason) == 1
    assert done.stdout.count("Traceback (most recent call last):") == 1
    assert "0 passed, 3 failed in" in done.stdout


@pytest.mark.long
def test_signal_ends_everything(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"tests": [{"name": "a", "input": {"mock_delay": 300}}]})
    with subprocess.Popen(
        [sys.executable, "-m", "emulator", "test", "--verbose"],
        env=environment_of(project, {"LOG_FORMAT": "console"}),
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            next(line for line in process.stdout if "mock_delay" in line)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert rest.endswith("stopped by SIGINT\n")
    assert processes_in(project) == []


@pytest.mark.long
def test_job_of_a_server_is_replayed_saved_and_removed(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = HandlerServer(tmp_path / "server", MOCK_WORKER, API_KEYS="the-key")
    try:
        url = str(server.client.base_url)
        server.client.headers["Authorization"] = "Bearer the-key"
        kept = server.run(mock_return={"a": 1})
        running = server.send(mock_delay=300)
        project = write_project(tmp_path, {"tests": [{"name": "first", "input": {"x": 1}}]})
        at_server = ("--server", url, "--endpoint", ENDPOINT)

        saved = command(
            project,
            "test",
            "--job",
            kept["id"],
            "--save",
            "kept",
            *at_server,
            RUNPOD_API_KEY="the-key",
        )
        assert (saved.returncode, saved.stderr) == (0, "")
        repeated = command(
            project,
            "test",
            "--job",
            kept["id"],
            "--save",
            "kept",
            *at_server,
            "--api-key",
            "the-key",
        )
        assert repeated.returncode == 2
        assert "has a test named kept already; choose another" in repeated.stderr
        refused = command(project, "reset", *at_server)
        assert refused.returncode == 2
        assert "was refused with status 401" in refused.stderr

        reset = command(project, "reset", *at_server, "--api-key", "the-key")
        assert (reset.returncode, reset.stdout) == (0, "removed 2 jobs\n")
        for job_id in (kept["id"], running):
            assert server.client.get(f"/v2/{ENDPOINT}/status/{job_id}").status_code == 404
        repeated = command(project, "test", "--job", kept["id"], *at_server, "--api-key", "the-key")
        assert repeated.returncode == 2
        assert f"there is no job {kept['id']}" in repeated.stderr
    finally:
        server.close()

    assert json.loads((project / "tests.json").read_text())["tests"][1] == {
        "name": "kept",
        "input": {"mock_return": {"a": 1}},
        "expected_status": "COMPLETED",
        "expected_output": {"a": 1},
    }
    done = command(project, "test", "--command", "python -u handler.py")
    assert done.returncode == 0, done.stdout
    assert parse_table(done.stdout) == {
        "first": ["PASS", "COMPLETED"],
        "kept": ["PASS", "COMPLETED"],
    }


@pytest.mark.long
def test_failed_job_of_a_server_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = HandlerServer(tmp_path / "server", MOCK_WORKER, API_KEYS="the-key")
    try:
        url = str(server.client.base_url)
        server.client.headers["Authorization"] = "Bearer the-key"
        project = write_project(tmp_path, {"tests": []})
        failed = server.run(mock_error=True)
        replayed = command(
            project, "test", "--job", failed["id"], "--server", url, "--api-key", "the-key"
        )
        assert replayed.returncode == 1, replayed.stderr
        assert "ValueError: Mock error" in replayed.stdout
    finally:
        server.close()

"""The README's commands, run as they stand; only the port is another one."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.settings_page import page
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.+?)\n```$", README, re.M | re.S)
# What it shows as the output of a command.
OUTPUTS = dict(re.findall(r"^```sh\n([^\n]+)\n```\n\n```json\n(.+?)\n```$", README, re.M | re.S))
pytestmark = pytest.mark.timeout(180)


def environment(**extra: str) -> dict[str, str]:
    # A make below this one's make would announce its folder on stdout.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return kept | extra


def run(command: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def keys(value: Any) -> Any:
    """Return which keys JSON has, and not what is in them."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(each) for each in value if isinstance(each, dict)]
    return None


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    assert "make serve" in COMMANDS
    port = free_port()
    with subprocess.Popen(
        ["make", "serve"], cwd=ROOT, env=environment(PORT=str(port)), start_new_session=True
    ) as server:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    if json.load(answer)["status"] == "ok":
                        break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, "make serve ended"
            assert time.monotonic() < deadline, "make serve did not come up"
            time.sleep(0.1)
        yield port
        os.killpg(server.pid, signal.SIGTERM)


def test_it_has_the_commands_that_are_tested_here() -> None:
    assert len(COMMANDS) == 10, COMMANDS
    assert len(OUTPUTS) == 1, OUTPUTS


# R44, R45, R46, R47
@pytest.mark.parametrize("command", [each for each in COMMANDS if "json.tool" in each])
def test_a_job_ends_with_one_json(command: str) -> None:
    output = json.loads(run(command))

    (choice,) = output["choices"]
    # The sampled answer of test_input.json may be empty: the model may have nothing to add.
    assert choice["text"] or '"temperature": 0' not in command
    assert ("".join(choice["deltas"]) != choice["text"]) == output["validation"]["sanitized"]
    assert choice["tokens"] == choice["deltas"]
    assert output["usage"]["output"] >= len(choice["deltas"])
    assert output["streaming"] is True
    if command in OUTPUTS:
        assert keys(output) == keys(json.loads(OUTPUTS[command]))


def test_make_run_prints_the_json_last() -> None:
    assert "make run" in COMMANDS
    output = json.loads(run("make run").rstrip("\n").splitlines()[-1])
    assert output["usage"]["total"] == output["usage"]["input"] + output["usage"]["output"]


# R1, R19, R33, R42
@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("curl")])
def test_the_server_answers(command: str, port: int) -> None:
    answer = run(command.replace(":8000", f":{port}"))

    if "-N" in command:
        events = answer.strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks)
    else:
        assert "error" not in json.loads(answer)


def test_a_batch_is_answered(tmp_path: Path) -> None:
    [command] = [each for each in COMMANDS if "-m batch" in each]
    assert command.count("requests.jsonl") == 2
    assert command.count("answers.jsonl") == 1
    for name in ("requests.jsonl", "answers.jsonl"):
        command = command.replace(name, str(tmp_path / name))
    run(command)
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["a", "b", "c"]


def test_the_settings_page_is_what_the_classes_say() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == page(), "run `make docs`"


def test_links_between_the_documents_lead_somewhere() -> None:
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"

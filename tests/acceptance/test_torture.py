"""`python -m emulator torture` as a process, with a client that is a program of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integration.emulator.processes import build_environment
from tests.waiting import PATIENCE

WAIT_S = 50 * PATIENCE
# Takes the end of the stream for the end of the answer.
CLIENT = """\
import json, os, urllib.parse, http.client
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(url.netloc)
body = json.dumps({"model": "any", "prompt": "hi", "stream": True})
connection.request("POST", url.path + "/completions", body)
for line in connection.getresponse():
    if line.startswith(b"data: {"):
        print(json.loads(line[6:])["choices"][0]["text"], end="")
"""


def torture(folder: Path, client: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "emulator", "torture", "--client", client, *arguments],
        env=build_environment({"HOME": str(folder), "API_KEYS": "other", "ENGINE": "rkllm"}),
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=WAIT_S,
    )


def test_command_judges_a_program_and_writes_its_files(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    program = f"{shlex.quote(sys.executable)} -I -S client.py"
    files = ("--json", "verdicts.json", "--junit-xml", "verdicts.xml")
    done = torture(tmp_path, program, "--shapes", "plain,end-in-text,drop-in-text", *files)
    assert (done.returncode, done.stderr) == (1, "")
    table = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:4])
    verdicts = {
        "plain": "right",
        "end-in-text": "half answer taken for whole",
        # Lines of the standard library's response end silently, although the last chunk is missing.
        "drop-in-text": "half answer taken for whole",
    }
    assert table == verdicts
    assert "streams of completions: 1 right, 2 half answer taken for whole\n" in done.stdout
    report = json.loads((tmp_path / "verdicts.json").read_text())
    assert {each["shape"]: each["verdict"] for each in report["results"]} == verdicts
    suite = ElementTree.parse(tmp_path / "verdicts.xml").getroot()[0]  # noqa: S314
    assert (suite.attrib["name"], suite.attrib["failures"]) == ("completions", "2")


@pytest.mark.long
def test_command_refuses_a_client_that_prints_no_answer(tmp_path: Path) -> None:
    done = torture(tmp_path, "echo oops >&2; exit 4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the client requested no answer: it must send its request to OP")
    assert "oops" in done.stderr


def test_list_ends_with_its_reader() -> None:
    command = f"{shlex.quote(sys.executable)} -m emulator torture --list | head -n 1"
    done = subprocess.run(  # noqa: S602
        command, shell=True, capture_output=True, check=False, text=True, timeout=WAIT_S
    )
    assert (done.stdout, done.stderr) == ("plain\n", "")

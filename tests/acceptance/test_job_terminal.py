"""`python -m handler` on a terminal: the display of one local job."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL_RULES
from tests.integration.handler.control_plane import clean_environment

WAIT_S = 50
SCRIPT = {"answers": [{"pieces": ["He", "llo", " world"]}]}
STREAMED = {"prompt": "hi", "sampling_params": {"stream": True}}


def run_job_on_terminal(folder: Path, job_input: dict[str, Any]) -> tuple[int, str]:
    """Run a job with stdout on a pseudo-terminal; return the exit code and what it shows."""
    (folder / "hello.json").write_text(json.dumps(SCRIPT))
    settings = {"MODEL_PATH": "hello.json", "VALIDATION_RULES": str(SMALL_RULES)}
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "handler", "--test_input", json.dumps({"input": job_input})],
        cwd=folder,
        env=clean_environment(folder, settings),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:
        # Linux reports the end of a terminal like this.
        pass
    finally:
        os.close(controller)
    return process.wait(WAIT_S), output.decode().replace("\r\n", "\n")


@pytest.mark.long_except("True")
@pytest.mark.parametrize("stream", [True, False])
def test_job_on_a_terminal_shows_text_then_verdict_then_json(tmp_path: Path, stream: bool) -> None:
    code, screen = run_job_on_terminal(
        tmp_path, {"prompt": "hi", "sampling_params": {"stream": stream}}
    )
    assert code == 0
    text, verdict, output = screen.split("\n\n")
    assert text == "Hello world"
    assert verdict.startswith("valid \u00b7 intent general \u00b7 3 tokens in ")
    decoded = json.loads(output)
    assert decoded["choices"][0]["text"] == "Hello world"
    if stream:
        assert '"deltas": ["He", "llo", " world"],' in output.replace('","', '", "')


def test_failed_job_on_a_terminal_shows_the_error_sentence(tmp_path: Path) -> None:
    # R50
    code, screen = run_job_on_terminal(tmp_path, {"prompt": ""})
    assert code == 1
    assert screen == 'input.prompt must be a non-empty string, got ""\n'

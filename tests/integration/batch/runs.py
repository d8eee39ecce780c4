"""Runs `python -m batch` as a subprocess, on the scripted engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import SMALL_RULES

ROOT = Path(__file__).resolve().parents[3]
# The long form of a test has 50,000 lines.
TIMEOUT_S = 600


def command(*arguments: str | Path) -> list[str]:
    """Return the arguments of the command."""
    return [sys.executable, "-m", "batch", "run", *map(str, arguments)]


def environment(model: Path, **settings: str) -> dict[str, str]:
    """Return the environment variables of a run: the current ones, the model and settings.

    It uses a small rules file, because reading all rules takes a quarter of the startup time.
    """
    variables = {
        "MODEL_PATH": str(model),
        "LOG_LEVEL": "WARNING",
        "VALIDATION_RULES": str(SMALL_RULES),
    }
    return {**os.environ, **variables, **settings}


def run(
    model: Path,
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path = ROOT,
    variables: Mapping[str, str] | None = None,
    **settings: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a folder, with settings and other variables, and wait for its exit."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        env=environment(model, PYTHONPATH=str(ROOT), **settings) | dict(variables or {}),
        capture_output=True,
        cwd=cwd,
        timeout=TIMEOUT_S,
        check=False,
    )


def call(custom_id: str, prompt: str = "a prompt", **body: Any) -> dict[str, Any]:
    """Return a line for /v1/completions."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": prompt, "max_tokens": 16, **body},
    }


def chat(custom_id: str, content: str = "hi", **body: Any) -> dict[str, Any]:
    """Return a line for /v1/chat/completions."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": content}], **body},
    }


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write a file of lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; the last one must be complete."""
    raw = path.read_bytes()
    assert raw.endswith(b"\n") or not raw
    return [json.loads(line) for line in raw.splitlines()]


def text(line: dict[str, Any]) -> str:
    """Return the generated text of an output line."""
    [choice] = line["response"]["body"]["choices"]
    answer: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return answer

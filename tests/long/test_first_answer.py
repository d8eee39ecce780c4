"""The first answer of a new user: test_input.json on the built-in model, many times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.handler.control_plane import clean_environment

ROOT = Path(__file__).parents[2]
RUNS = 30
MIN_VALID = 27


def run_local_job(home: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "handler"],
        cwd=ROOT,
        env=clean_environment(home, {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.timeout(RUNS * 60)
def test_first_answer_is_never_empty_and_nearly_always_valid(
    tmp_path: Path, default_model_path: Path
) -> None:
    # R44, R58, R60: each run samples another text, and the model is small.
    assert default_model_path.is_file()
    outputs = [run_local_job(tmp_path) for _ in range(RUNS)]
    texts = [output["choices"][0]["text"] for output in outputs]
    assert all(text.strip() for text in texts)
    assert {output["validation"]["intent"] for output in outputs} == {"career_guidance"}
    issues = [output["validation"]["issues"] for output in outputs]
    assert issues.count([]) >= MIN_VALID, [each for each in issues if each]

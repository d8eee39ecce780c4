"""Jobs go on without the packages that only parts of validation need, and say what they lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# As if none of them were installed: Python finds None where their modules would be.
WITHOUT = """
import sys
for name in ("numpy", "py3langid", "jsonschema_rs"):
    sys.modules[name] = None
from handler.__main__ import main
sys.exit(main())
"""
ASKED = {
    "prompt": "How do I become a paramedic?",
    "validation": {"json_schema": {"type": "object"}, "language": "en", "redact_pii": True},
}


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENGINE": "scripted", "ENGINE_ISOLATION": "thread"}
    environment.pop("MODEL_PATH", None)
    job = json.dumps({"input": ASKED})
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, "--test_input", job],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


def test_the_job_is_answered(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["choices"][0]["text"] == ASKED["prompt"]
    assert output["validation"]["intent"] == "career_guidance"


def test_it_says_what_was_not_looked_at(done: subprocess.CompletedProcess[str]) -> None:
    warnings = json.loads(done.stdout.splitlines()[-1])["warnings"]
    assert [warning.split(" ")[0] for warning in warnings] == [
        "input.validation.json_schema",
        "input.validation.language",
    ]
    assert "`pip install 'worker-rkllm[validation]'` adds it" in warnings[0]
    assert "`pip install 'worker-rkllm[validation]'` adds it" in warnings[1]
    assert "the classifier needs the package numpy" in done.stdout + done.stderr

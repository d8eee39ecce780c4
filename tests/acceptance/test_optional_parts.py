"""Jobs run without the optional packages of validation, with warnings that name them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# Python raises ImportError for modules that are None in `sys.modules`.
WITHOUT = """
import sys
for name in ("numpy", "py3langid", "jsonschema_rs"):
    sys.modules[name] = None
from handler.__main__ import main
sys.exit(main())
"""
JOB_INPUT = {
    "prompt": "How do I become a paramedic?",
    "validation": {"json_schema": {"type": "object"}, "language": "en", "redact_pii": True},
}


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENGINE": "scripted", "ENGINE_ISOLATION": "thread"}
    environment.pop("MODEL_PATH", None)
    job = json.dumps({"input": JOB_INPUT})
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, "--test_input", job],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


def test_job_completes_without_optional_packages(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["choices"][0]["text"] == JOB_INPUT["prompt"]
    assert output["validation"]["intent"] == "career_guidance"


def test_warnings_name_the_missing_packages(
    done: subprocess.CompletedProcess[str],
) -> None:
    warnings = json.loads(done.stdout.splitlines()[-1])["warnings"]
    assert [warning.split(" ")[0] for warning in warnings] == [
        "input.validation.json_schema",
        "input.validation.language",
    ]
    assert "`pip install jsonschema-rs` adds it" in warnings[0]
    assert "`pip install py3langid` adds it" in warnings[1]
    assert "the classifier needs the package numpy" in done.stdout + done.stderr

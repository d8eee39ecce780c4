"""`make test-arm64` runs the tests of differences between boards on an emulated arm64 machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1200
# Prefixes of variables that make and pytest set for their own children only.
EXCLUDED_PREFIXES = ("MAKE", "MFLAGS", "PYTEST", "COV")


@pytest.mark.timeout(LIMIT_S + 60)
def test_arm64(tmp_path: Path) -> None:
    report = tmp_path / "arm64.xml"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(EXCLUDED_PREFIXES)
    }
    done = subprocess.run(
        ["make", "test-arm64", f"PYTEST_ARGS=-p no:cacheprovider --junit-xml={report}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}{done.stderr[-2_000:]}"
    written = report.read_text()
    assert "<skipped" not in written
    modules = {name.rpartition(".")[2] for name in re.findall(r'classname="([\w.]+)"', written)}
    # On another architecture, the first of them fails.
    assert modules >= {
        "test_machine",
        "test_abi",
        "test_runtime",
        "test_orphans",
        "test_rkllm_many",
    }

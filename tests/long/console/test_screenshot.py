"""`make screenshot` takes a picture of the console while an answer is being generated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.test_console_picture import ROOT, check_picture

pytestmark = pytest.mark.timeout(300)


def test_make_screenshot_writes_a_small_png(tmp_path: Path) -> None:
    path = tmp_path / "console.png"
    subprocess.run(["make", "screenshot", f"SCREENSHOT={path}"], cwd=ROOT, check=True, timeout=240)
    check_picture(path.read_bytes())

"""`make screenshot` takes a picture of the console while an answer is being generated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.test_console_picture import ROOT, check_picture

pytestmark = pytest.mark.timeout(300)


def test_make_screenshot_writes_two_small_pngs(tmp_path: Path) -> None:
    paths = [tmp_path / "console.png", tmp_path / "handler.png"]
    variables = [f"SCREENSHOT={paths[0]}", f"HANDLER_SCREENSHOT={paths[1]}"]
    subprocess.run(["make", "screenshot", *variables], cwd=ROOT, check=True, timeout=240)
    for path in paths:
        check_picture(path.read_bytes())

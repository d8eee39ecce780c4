"""Two minutes of mixed load; `make soak` is the half hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.soak import soak


@pytest.mark.timeout(600)
async def test_nothing_grows_in_two_minutes(tmp_path: Path) -> None:
    (folder := tmp_path / "server").mkdir()
    report = await soak(folder, tmp_path, seconds=120, min_jobs=60_000)
    assert report.grown == [], str(report)
    assert len(report.samples) >= 100

"""Memory, files and threads do not grow under mixed load: the shortest form of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.soak import soak


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_nothing_grows_in_a_quarter_of_a_minute(tmp_path: Path) -> None:
    (folder := tmp_path / "server").mkdir()
    report = await soak(folder, tmp_path, seconds=15)
    assert report.grown == [], str(report)
    # There is about one sample per second, and each kind of operation was run.
    assert len(report.samples) >= 10
    assert len(report.done) == 10
    assert (tmp_path / "soak.csv").is_file()
    assert (tmp_path / "soak.png").stat().st_size > 10_000

"""kill -9 anywhere: no acknowledged job is lost, none has two results."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crashes.run import crash

JOBS, KILLS = 2_000, 100


@pytest.mark.timeout(600)
async def test_two_thousand_jobs_and_a_hundred_kills(tmp_path: Path) -> None:
    report = await crash(tmp_path, jobs=JOBS, kills=KILLS, seed=random.randrange(2**32), warm=True)
    assert report.broken == [], str(report)
    assert (report.jobs, report.kills.total()) == (JOBS, KILLS)
    # Otherwise nothing was hit in the middle, and nothing was tested.
    assert report.repeated > 0

"""kill -9 anywhere: no acknowledged job is lost, none has two results."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crashes.run import crash

# The long form is what is promised of each change; `make crash` is the form without end.
JOBS, KILLS = 100, 4
MANY_JOBS, MANY_KILLS = 2_000, 100


@pytest.mark.timeout(600)
async def test_jobs_outlive_every_kill(tmp_path: Path, scale: int) -> None:
    jobs, kills = (JOBS, KILLS) if scale == 1 else (MANY_JOBS, MANY_KILLS)
    report = await crash(tmp_path, jobs=jobs, kills=kills, seed=random.randrange(2**32), warm=True)
    assert report.broken == [], str(report)
    assert (report.jobs, report.kills.total()) == (jobs, kills)
    # Otherwise nothing was hit in the middle, and nothing was tested: a job that is hit runs again,
    # or has failed with its engine host; a call that is hit has no answer.
    assert report.repeated + report.failed + report.unacknowledged + report.broke_off > 0

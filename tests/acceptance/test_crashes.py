"""SIGKILL of any process loses no acknowledged job, and no job has two results."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crashes.run import crash

# Every change must pass the long form; `make crash` runs it for any length.
JOBS, KILLS = 20, 2
LONG_JOBS, LONG_KILLS = 2_000, 100


@pytest.mark.timeout(600)
async def test_acknowledged_jobs_survive_kills_of_all_processes(tmp_path: Path, scale: int) -> None:
    jobs, kills = (JOBS, KILLS) if scale == 1 else (LONG_JOBS, LONG_KILLS)
    report = await crash(tmp_path, jobs=jobs, kills=kills, seed=random.randrange(2**32), warm=True)
    assert report.broken == [], str(report)
    assert (report.jobs, report.kills.total()) == (jobs, kills)
    # At least one kill must have interrupted something: an interrupted job runs again or has failed
    # with its engine host, and an interrupted request has no response.
    assert report.repeated + report.failed + report.unacknowledged + report.broke_off > 0

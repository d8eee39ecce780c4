"""More jobs and kills than the suite has time for; `make crash` is the form without end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crashes.run import crash

JOBS, KILLS = 6_000, 300


@pytest.mark.timeout(900)
async def test_six_thousand_jobs_and_three_hundred_kills(tmp_path: Path) -> None:
    report = await crash(tmp_path, jobs=JOBS, kills=KILLS, seed=random.randrange(2**32))
    assert report.broken == [], str(report)
    assert (report.jobs, report.kills.total()) == (JOBS, KILLS)

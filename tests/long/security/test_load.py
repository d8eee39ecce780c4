"""32 clients of all APIs for a minute: nothing fails, nothing is lost, and nothing is kept."""

from __future__ import annotations

import logging

import pytest

from tests.security.load import run_load

logger = logging.getLogger(__name__)

# What the answers of the jobs take that are kept, and what the interpreter does not give back.
_MAX_GROWTH_BYTES = 150_000_000
_MAX_MORE_FILES = 20


@pytest.mark.timeout(300)
async def test_clients_of_all_apis_lose_nothing_in_a_minute() -> None:
    load = await run_load()
    logger.info("%s", load.table())
    assert load.failures == []
    assert load.lost_jobs == []
    # Each accepted job has ended exactly once.
    assert load.ended_jobs == len(load.jobs) == len(set(load.jobs)) > 100
    assert load.peak_bytes < load.before_bytes + _MAX_GROWTH_BYTES
    before, after = load.files
    assert after <= before + _MAX_MORE_FILES

"""Full garbage collections do not visit waiting jobs."""

from __future__ import annotations

import asyncio
import gc

import pytest

from emulator.server.gc_tuning import GarbageCollectorTuning
from jobs import Job
from tests.integration.emulator.conftest import Serve

_JOBS = 200


def _count_tracked_jobs() -> int:
    """Count the jobs that the next full collection would visit."""
    return sum(isinstance(tracked, Job) for tracked in gc.get_objects())


@pytest.mark.long
async def test_full_collection_does_not_visit_waiting_jobs(serve: Serve) -> None:
    server = await serve()
    tuning = GarbageCollectorTuning()
    tuning.start()
    frozen_before = gc.get_freeze_count()
    try:
        async with server.client() as client:
            body = {"input": {"prompt": "hello"}}
            async with asyncio.TaskGroup() as group:
                for _ in range(_JOBS):
                    group.create_task(client.post("/v2/nobody-works-here/run", json=body))
            health = (await client.get("/v2/nobody-works-here/health")).json()
        assert health["jobs"]["inQueue"] == _JOBS
        gc.collect()
        assert gc.get_freeze_count() >= frozen_before + _JOBS
        assert not _count_tracked_jobs()
    finally:
        tuning.close()

"""Jobs that wait are not gone through by every full look of Python's collector."""

from __future__ import annotations

import asyncio
import gc

import pytest

from emulator.server.gc_tuning import GarbageCollectorTuning
from jobs import Job
from tests.integration.emulator.conftest import Serve

_JOBS = 200


def _looked_at() -> int:
    """Count the jobs that the collector's next full look would go through."""
    return sum(isinstance(each, Job) for each in gc.get_objects())


@pytest.mark.long
async def test_full_look_does_not_go_through_the_jobs_that_wait(serve: Serve) -> None:
    server = await serve()
    garbage = GarbageCollectorTuning()
    garbage.start()
    aside = gc.get_freeze_count()
    try:
        async with server.client() as client:
            body = {"input": {"prompt": "hello"}}
            async with asyncio.TaskGroup() as group:
                for _ in range(_JOBS):
                    group.create_task(client.post("/v2/nobody-works-here/run", json=body))
            health = (await client.get("/v2/nobody-works-here/health")).json()
        assert health["jobs"]["inQueue"] == _JOBS
        gc.collect()
        assert gc.get_freeze_count() >= aside + _JOBS
        assert not _looked_at()
    finally:
        garbage.close()

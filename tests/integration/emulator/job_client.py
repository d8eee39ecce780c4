"""Calls of a client to the job queue; by default of an endpoint that has no workers."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.waiting import poll_until

INPUT: dict[str, Any] = {"prompt": "hello there"}
OTHER = "/v2/other"


async def submit_job(client: httpx2.AsyncClient, prefix: str = OTHER, **body: Any) -> str:
    response = await client.post(f"{prefix}/run", json={"input": INPUT} | body)
    assert response.json()["status"] == "IN_QUEUE"
    job_id: str = response.json()["id"]
    return job_id


async def get_status(
    client: httpx2.AsyncClient, job_id: str, prefix: str = OTHER
) -> dict[str, Any]:
    response = await client.get(f"{prefix}/status/{job_id}")
    assert response.status_code == 200
    job: dict[str, Any] = response.json()
    return job


async def wait_for_status(
    client: httpx2.AsyncClient, job_id: str, state: str, prefix: str = OTHER
) -> Any:
    async def find_job() -> dict[str, Any] | None:
        job = await get_status(client, job_id, prefix)
        return job if job["status"] == state else None

    return await poll_until(find_job)


async def wait_until_deleted(client: httpx2.AsyncClient, job_id: str) -> None:
    """Wait until a job is deleted."""

    async def is_deleted() -> bool:
        return (await client.get(f"/status/{job_id}")).status_code == 404

    await poll_until(is_deleted)


async def get_job_counts(client: httpx2.AsyncClient, prefix: str = OTHER) -> dict[str, Any]:
    response = await client.get(f"{prefix}/health")
    assert response.json().keys() == {"jobs", "workers"}
    jobs: dict[str, Any] = response.json()["jobs"]
    return jobs

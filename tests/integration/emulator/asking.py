"""What tests ask of a job queue, over HTTP; of an endpoint that nobody serves unless they say."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.waiting import poll_until

INPUT: dict[str, Any] = {"prompt": "hello there"}
OTHER = "/v2/other"


async def sent(client: httpx2.AsyncClient, prefix: str = OTHER, **body: Any) -> str:
    response = await client.post(f"{prefix}/run", json={"input": INPUT} | body)
    assert response.json()["status"] == "IN_QUEUE"
    job_id: str = response.json()["id"]
    return job_id


async def status(client: httpx2.AsyncClient, job_id: str, prefix: str = OTHER) -> dict[str, Any]:
    response = await client.get(f"{prefix}/status/{job_id}")
    assert response.status_code == 200
    shown: dict[str, Any] = response.json()
    return shown


async def becomes(client: httpx2.AsyncClient, job_id: str, state: str, prefix: str = OTHER) -> Any:
    async def reached() -> dict[str, Any] | None:
        shown = await status(client, job_id, prefix)
        return shown if shown["status"] == state else None

    return await poll_until(reached)


async def forgotten(client: httpx2.AsyncClient, job_id: str) -> None:
    """Wait until a job is kept no more."""

    async def gone() -> bool:
        return (await client.get(f"/status/{job_id}")).status_code == 404

    await poll_until(gone)


async def health(client: httpx2.AsyncClient, prefix: str = OTHER) -> dict[str, Any]:
    response = await client.get(f"{prefix}/health")
    assert response.json().keys() == {"jobs", "workers"}
    jobs: dict[str, Any] = response.json()["jobs"]
    return jobs

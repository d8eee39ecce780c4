"""Short scenarios of requests, each of which passes some failpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tests.crashes.recording_client import FAR, IDLE, LOST, RecordingClient

Part: TypeAlias = Callable[[RecordingClient], Awaitable[None]]

_SHORT_MS = 50


async def run(client: RecordingClient) -> None:
    await client.wait_for_end(await client.run("default"))


async def runsync(client: RecordingClient) -> None:
    await client.runsync("default", 5_000)


async def runsync_in_vain(client: RecordingClient) -> None:
    await client.runsync(IDLE, 1_000)


async def webhook(client: RecordingClient) -> None:
    await client.wait_for_end(await client.run("default", webhook=client.hook_url))


async def cancel(client: RecordingClient) -> None:
    job_id = await client.run(IDLE)
    await client.cancel(job_id)
    await client.read_status(job_id)


async def purge(client: RecordingClient) -> None:
    ids = [await client.run(IDLE) for _ in range(3)]
    response = await client.request_json("POST", f"/v2/{IDLE}/purge-queue")
    assert response["removed"] >= len(ids)
    client.cancelled.update(ids)
    for job_id in ids:
        await client.read_status(job_id)


async def work(client: RecordingClient) -> None:
    job_id = await client.run(FAR)
    while (job := await client.take(FAR, "one")) is not None:
        text = job["input"]["prompt"]
        await client.post_update("job-stream", FAR, "one", job["id"], {"output": text})
        progress = {"status": "IN_PROGRESS", "output": "half"}
        await client.post_update("job-done", FAR, "one", job["id"], progress)
        await client.post_update("job-done", FAR, "one", job["id"], {"output": text})
    await client.read_status(job_id)


async def retry(client: RecordingClient) -> None:
    job_id = await client.run(FAR)
    while (job := await client.take(FAR, "one")) is not None:
        await client.post_update("job-done", FAR, "one", job["id"], {"error": "not today"})
    await client.wait_for_end(job_id)
    await client.retry(job_id)


async def retry_runsync(client: RecordingClient) -> None:
    await client.retry_runsync(LOST)
    # The kill should come after the retry was acknowledged.
    await client.run(IDLE)


async def lost_worker(client: RecordingClient) -> None:
    job_id = await client.run(LOST)
    listening = asyncio.create_task(client.http.get(f"/v2/{LOST}/job-stop/leaver?gpu=none"))
    # No event shows when the server has received the request.
    await asyncio.sleep(0.1)
    await client.take(LOST, "leaver")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await client.take_when_released(LOST, "two")
    await client.read_status(job_id)


async def silent_worker(client: RecordingClient) -> None:
    await client.run(LOST)
    await client.take(LOST, "silent")
    await client.take_when_released(LOST, "two")


async def time_to_live(client: RecordingClient) -> None:
    job_id = await client.run(IDLE, policy={"ttl": _SHORT_MS})
    client.expiring.add(job_id)
    await client.wait_for_end(job_id)


async def time_limit(client: RecordingClient) -> None:
    job_id = await client.run(LOST, policy={"executionTimeout": _SHORT_MS})
    await client.take(LOST, "slow")
    await client.wait_for_end(job_id)


async def retention(client: RecordingClient) -> None:
    await client.runsync("default", 5_000)


async def start(client: RecordingClient) -> None:
    """Read the health; the failpoints of a start are passed before any request."""
    await client.request_json("GET", "/v2/default/health")


# The scenario that passes each failpoint.
PARTS: Mapping[str, Part] = {
    "cancel": cancel,
    "cancelled": cancel,
    "change-durable": run,
    "change-private": runsync,
    "change-saved": run,
    "change-visible": run,
    "chunk-kept": work,
    "ack": work,
    "appended": work,
    "enqueue-durable": run,
    "enqueue-saved": run,
    "enqueued": run,
    "expired": time_to_live,
    "forgotten": retention,
    "handed-out": work,
    "journal-again": run,
    "journal-answered": run,
    "journal-loaded": start,
    "journal-refused": run,
    "journal-sending": run,
    "journal-spawned": start,
    "lease-over": silent_worker,
    "leased": work,
    "local-ended": run,
    "local-ran": run,
    "losing": lost_worker,
    "nack": lost_worker,
    "progress": work,
    "publish": runsync_in_vain,
    "published": runsync_in_vain,
    "purge": purge,
    "purged": purge,
    "recovered": start,
    "recovering": start,
    "result-come": work,
    "result-kept": work,
    "retried": retry,
    "retry": retry,
    "run-accepted": retry_runsync,
    "runsync-ended": runsync,
    "store-answered": run,
    "store-appended": work,
    "store-begun": run,
    "store-committed": run,
    "store-folded": run,
    "store-folding": run,
    "store-forgotten": run,
    "store-loaded": start,
    "store-loading": start,
    "store-opened": start,
    "store-received": run,
    "store-refused": run,
    "store-saved": run,
    "timed-out": time_limit,
    "webhook-kept": webhook,
    "webhook-delivered": webhook,
    "webhook-sending": webhook,
}
# Passed only when another process locks the database, or the store process is killed.
LOCKED = frozenset({"journal-refused", "store-refused"})
STORE_KILLED = frozenset({"journal-again"})
AT_START = frozenset(name for name, part in PARTS.items() if part is start)


def in_store(name: str) -> bool:
    """Return whether the store process, not the server, is killed at this failpoint."""
    return name.startswith("store-")

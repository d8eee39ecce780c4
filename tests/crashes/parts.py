"""Small pieces of a server's day, each of which passes some failpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tests.crashes.scene import FAR, IDLE, LOST, Scene

Part: TypeAlias = Callable[[Scene], Awaitable[None]]

_SHORT_MS = 50


async def run(scene: Scene) -> None:
    await scene.ends(await scene.run("default"))


async def runsync(scene: Scene) -> None:
    await scene.runsync("default", 5_000)


async def runsync_in_vain(scene: Scene) -> None:
    await scene.runsync(IDLE, 1_000)


async def webhook(scene: Scene) -> None:
    await scene.ends(await scene.run("default", webhook=scene.hook_url))


async def cancel(scene: Scene) -> None:
    job_id = await scene.run(IDLE)
    await scene.cancel(job_id)
    await scene.look(job_id)


async def purge(scene: Scene) -> None:
    ids = [await scene.run(IDLE) for _ in range(3)]
    told = await scene.ask("POST", f"/v2/{IDLE}/purge-queue")
    assert told["removed"] >= len(ids)
    scene.cancelled.update(ids)
    for job_id in ids:
        await scene.look(job_id)


async def work(scene: Scene) -> None:
    job_id = await scene.run(FAR)
    while (job := await scene.take(FAR, "one")) is not None:
        said = job["input"]["prompt"]
        await scene.tell("job-stream", FAR, "one", job["id"], {"output": said})
        progress = {"status": "IN_PROGRESS", "output": "half"}
        await scene.tell("job-done", FAR, "one", job["id"], progress)
        await scene.tell("job-done", FAR, "one", job["id"], {"output": said})
    await scene.look(job_id)


async def retry(scene: Scene) -> None:
    job_id = await scene.run(FAR)
    while (job := await scene.take(FAR, "one")) is not None:
        await scene.tell("job-done", FAR, "one", job["id"], {"error": "not today"})
    await scene.ends(job_id)
    await scene.retry(job_id)


async def runsync_again(scene: Scene) -> None:
    await scene.runsync_again(LOST)
    # The kill is to come after the retry was acknowledged.
    await scene.run(IDLE)


async def lost_worker(scene: Scene) -> None:
    job_id = await scene.run(LOST)
    listening = asyncio.create_task(scene.http.get(f"/v2/{LOST}/job-stop/leaver?gpu=none"))
    # Nothing tells when the server has heard the call.
    await asyncio.sleep(0.1)
    await scene.take(LOST, "leaver")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await scene.taken_again(LOST, "two")
    await scene.look(job_id)


async def silent_worker(scene: Scene) -> None:
    await scene.run(LOST)
    await scene.take(LOST, "silent")
    await scene.taken_again(LOST, "two")


async def time_to_live(scene: Scene) -> None:
    job_id = await scene.run(IDLE, policy={"ttl": _SHORT_MS})
    scene.passing.add(job_id)
    await scene.ends(job_id)


async def time_limit(scene: Scene) -> None:
    job_id = await scene.run(LOST, policy={"executionTimeout": _SHORT_MS})
    await scene.take(LOST, "slow")
    await scene.ends(job_id)


async def retention(scene: Scene) -> None:
    await scene.runsync("default", 5_000)


async def start(scene: Scene) -> None:
    """Passed before anybody can ask for anything."""
    await scene.ask("GET", "/v2/default/health")


# Which piece of the day passes which failpoint.
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
    "run-accepted": runsync_again,
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
# Passed only when the database is locked by somebody else, or the store process is killed.
LOCKED = frozenset({"journal-refused", "store-refused"})
STORE_KILLED = frozenset({"journal-again"})
AT_START = frozenset(name for name, part in PARTS.items() if part is start)


def in_store(name: str) -> bool:
    """Tell whether it is the store process that dies there."""
    return name.startswith("store-")

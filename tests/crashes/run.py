"""One crash test: send jobs while processes are killed, then check every promise."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tests.crashes import database
from tests.crashes.client import Client
from tests.crashes.kills import Killer, Target, plan
from tests.crashes.ledger import Ledger
from tests.crashes.server import Server
from tests.crashes.template import Template
from tests.crashes.workers import Workers

# `default` has the local worker and an SDK worker, `far` has SDK workers only.
_ENDPOINTS = ("default", "far")
_WORKERS = ("default", "far", "far", "far")
_SLOTS = 4
_CONCURRENCY = 24
_SETTINGS = {
    # A kill counts as a lost worker, and no job should fail here for too many of them.
    "MAX_LOSSES": "1000000",
    "MAX_JOBS": "1000000",
    "RESULT_RETENTION_S": "86400",
    "LEASE_S": "2",
    "WORKER_GRACE_S": "0.1",
}


@dataclass
class Report:
    """The result of a crash test; `broken` should be empty."""

    seed: int
    jobs: int = 0
    completed: int = 0
    failed: int = 0
    repeated: int = 0
    unacknowledged: int = 0
    status_reads: int = 0
    broke_off: int = 0
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest_start_s: float = 0.0
    kills: Counter[Target] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def numbers(self) -> Counter[str]:
        """Return the figures that can be summed over several tests."""
        return Counter(
            {
                "jobs": self.jobs,
                "kills": self.kills.total(),
                **{f"of the {target}": self.kills[target] for target in sorted(self.kills)},
                "completed": self.completed,
                "failed with their engine host": self.failed,
                "run more than once": self.repeated,
                "accepted without a client knowing": self.unacknowledged,
                "status reads": self.status_reads,
                "connections broken off": self.broke_off,
                "answers of 5xx": self.refused.total(),
                "seconds": round(self.seconds),
            }
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in self.numbers().items())
        return (
            f"seed {self.seed}: {counts}, slowest start {self.slowest_start_s:.2f} s; "
            f"{len(self.broken)} promises broken"
        )


async def crash(folder: Path, *, jobs: int, kills: int, seed: int, warm: bool = False) -> Report:
    """Run a crash test in an empty folder; `warm` forks the servers, because that starts faster."""
    began = time.monotonic()
    rng = random.Random(seed)
    script = folder / "script.json"
    # Each prompt is returned, slowly enough to be killed in the middle.
    script.write_text(json.dumps({"answers": [{"delay_ms": 2}], "slots": _SLOTS}))
    template = await Template.open() if warm else None
    server = Server(folder, _SETTINGS | {"MODEL_PATH": str(script)}, template)
    workers = Workers(server.port, _WORKERS, folder / "workers.log")
    try:
        await server.start()
        async with server.client() as http:
            client = Client(http, _ENDPOINTS, seed)
            killer = Killer(server, workers, client.ledger, rng)
            await _under_kills(client, killer, jobs, plan(kills, rng))
            await client.read_all_statuses(_CONCURRENCY)
            # Results must survive a restart, not only be in the server's memory.
            await server.kill()
            await server.start()
            await client.read_all_statuses(_CONCURRENCY)
        workers.close()
        exit_code = await server.stop()
        broken = list(client.ledger.broken)
        if exit_code != 0:
            broken.append(f"the server ended with code {exit_code}: {server.log_end()}")
        broken += [f"process {pid} outlived its server" for pid in killer.orphans]
        broken += [f"process {pid} outlived its server" for pid in await server.orphans()]
    finally:
        await server.close()
        workers.close()
        if template is not None:
            await template.close()
    report = Report(
        seed,
        jobs=len(client.ledger.prompts),
        completed=client.ledger.completed,
        failed=client.ledger.failed,
        status_reads=client.ledger.status_reads,
        broke_off=client.broke_off,
        refused=client.refused,
        slowest_start_s=max(server.start_s),
        kills=killer.done,
        broken=broken,
    )
    _compare(report, client, server, workers)
    report.seconds = time.monotonic() - began
    return report


async def _under_kills(client: Client, killer: Killer, jobs: int, targets: list[Target]) -> None:
    sending = asyncio.create_task(client.send(jobs, _CONCURRENCY))
    try:
        for number, target in enumerate(targets):
            # Let some jobs end between two kills, or the server would give up the engine.
            progress = asyncio.create_task(
                client.wait_until_finished(number * jobs // (len(targets) + 1))
            )
            await asyncio.wait({progress, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not progress.done():
                progress.cancel()
                sending.result()
            await killer.kill(target, is_finished=sending.done)
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def _find_lost_jobs(ledger: Ledger, disk: database.OnDisk) -> Iterator[str]:
    for job_id in ledger.prompts:
        if job_id not in disk.attempts:
            yield f"{job_id} is not on the disk"
        elif job_id not in ledger.finals:
            yield f"{job_id} has not ended"


def _compare(report: Report, client: Client, server: Server, workers: Workers) -> None:
    """Compare the responses with the database and with the acknowledgements to workers."""
    ledger, broken = client.ledger, report.broken
    disk = database.read(server.database)
    if not disk.healthy:
        broken.append("the database is damaged")
    report.unacknowledged = len(disk.attempts.keys() - ledger.prompts.keys())
    report.repeated = sum(attempt > 1 for attempt in disk.attempts.values())
    broken += _find_lost_jobs(ledger, disk)
    max_failed = report.kills["engine host"] * _SLOTS
    if report.failed > max_failed:
        broken.append(
            f"{report.failed} jobs failed with their engine host, {max_failed} were on one"
        )
    for (status, body), count in client.refused.items():
        # If the store is killed twice while it writes one batch, the server responds 503.
        if status != 503 or "error" not in orjson.loads(body):
            broken.append(f"{count} answers were {status} {body}")
    for job_id, nonces in workers.taken().items():
        kept = orjson.loads(disk.outputs.get(job_id) or b"{}").get("nonce")
        if nonces != [kept]:
            broken.append(f"{job_id}: the results {nonces} were taken, {kept} is kept")
    if "Traceback" in (log := server.log.read_text(errors="replace")):
        at = log.index("Traceback")
        broken.append(f"the server's log has: {log[max(0, at - 500) : at + 3000]}")

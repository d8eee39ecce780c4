"""One whole crash test: jobs sent while everything is killed, then every promise looked at."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tests.crashes import database
from tests.crashes.client import Client
from tests.crashes.kills import Killer, Target, plan
from tests.crashes.server import Server
from tests.crashes.template import Template
from tests.crashes.workers import Workers

# `default` has the local worker and one of the SDK's kind, `far` only those.
_ENDPOINTS = ("default", "far")
_WORKERS = ("default", "far", "far", "far")
_SLOTS = 4
_AT_ONCE = 24
_SETTINGS = {
    # A kill counts as a lost worker; here none is to fail for having been killed too often.
    "MAX_LOSSES": "1000000",
    "MAX_JOBS": "1000000",
    "RESULT_RETENTION_S": "86400",
    "LEASE_S": "2",
    "WORKER_GRACE_S": "0.1",
}


@dataclass
class Report:
    """What a crash test found; `broken` is to be empty."""

    seed: int
    jobs: int = 0
    completed: int = 0
    failed: int = 0
    repeated: int = 0
    unacknowledged: int = 0
    looks: int = 0
    broke_off: int = 0
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest_start_s: float = 0.0
    kills: Counter[Target] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def numbers(self) -> Counter[str]:
        """Return what can be added up over several."""
        return Counter(
            {
                "jobs": self.jobs,
                "kills": self.kills.total(),
                **{f"of the {target}": self.kills[target] for target in sorted(self.kills)},
                "completed": self.completed,
                "failed with their engine host": self.failed,
                "run more than once": self.repeated,
                "accepted without a client knowing": self.unacknowledged,
                "looks": self.looks,
                "connections broken off": self.broke_off,
                "answers of 5xx": self.refused.total(),
                "seconds": round(self.seconds),
            }
        )

    def __str__(self) -> str:
        said = ", ".join(f"{count:,} {what}" for what, count in self.numbers().items())
        return (
            f"seed {self.seed}: {said}, slowest start {self.slowest_start_s:.2f} s; "
            f"{len(self.broken)} promises broken"
        )


async def crash(folder: Path, *, jobs: int, kills: int, seed: int, warm: bool = False) -> Report:
    """Run it in an empty folder; `warm` forks the servers, to have more kills in less time."""
    began = time.monotonic()
    rng = random.Random(seed)
    script = folder / "script.json"
    # Every prompt said back, slowly enough to be killed in the middle.
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
            await client.look_at_all(_AT_ONCE)
            # What is true only in the server's memory is not true.
            await server.kill()
            await server.start()
            await client.look_at_all(_AT_ONCE)
        workers.close()
        ended = await server.stop()
        broken = list(client.ledger.broken)
        if ended != 0:
            broken.append(f"the server ended with code {ended}: {server.last_words()}")
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
        looks=client.ledger.looks,
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
    sending = asyncio.create_task(client.send(jobs, _AT_ONCE))
    try:
        for number, target in enumerate(targets):
            # Between two kills some jobs end, or the engine would be given up as hopeless.
            wanted = asyncio.create_task(client.reached(number * jobs // (len(targets) + 1)))
            await asyncio.wait({wanted, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                wanted.cancel()
                sending.result()
            await killer.kill(target, over=sending.done)
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def _compare(report: Report, client: Client, server: Server, workers: Workers) -> None:
    """Hold what was seen against the disk and against what workers were told."""
    ledger, broken = client.ledger, report.broken
    disk = database.read(server.database)
    if not disk.healthy:
        broken.append("the database is damaged")
    report.unacknowledged = len(disk.attempts.keys() - ledger.prompts.keys())
    report.repeated = sum(attempt > 1 for attempt in disk.attempts.values())
    for job_id in ledger.prompts:
        if job_id not in disk.attempts:
            broken.append(f"{job_id} is not on the disk")
        elif job_id not in ledger.finals:
            broken.append(f"{job_id} has not ended")
    most = report.kills["engine host"] * _SLOTS
    if report.failed > most:
        broken.append(f"{report.failed} jobs failed with their engine host, {most} were on one")
    for (status, said), count in client.refused.items():
        # A store that is killed twice while it writes one batch leaves no way but to say so.
        if status != 503 or "error" not in orjson.loads(said):
            broken.append(f"{count} answers were {status} {said}")
    for job_id, nonces in workers.taken().items():
        kept = orjson.loads(disk.outputs.get(job_id) or b"{}").get("nonce")
        if nonces != [kept]:
            broken.append(f"{job_id}: the results {nonces} were taken, {kept} is kept")
    if "Traceback" in (log := server.log.read_text(errors="replace")):
        at = log.index("Traceback")
        broken.append(f"the server's log has: {log[max(0, at - 500) : at + 3000]}")

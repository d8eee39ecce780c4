"""`python -m tests.crashes.soak SECONDS`: mixed load for long, and nothing may grow.

Writes `soak.csv` and `soak.png` into the folder that SOAK_OUT names, a temporary one by default.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.crashes import samples as table
from tests.crashes.growth import grown, slopes
from tests.crashes.hook import Hook
from tests.crashes.load import Load
from tests.crashes.plot import plot
from tests.crashes.samples import Sample
from tests.crashes.server import Server
from tests.crashes.workers import Workers

_CLIENTS = 8
_PAUSE_S = 0.005
_SAY_S = 30
_QUIET_S = 60.0


@dataclass(frozen=True)
class Report:
    """What a soak found; `grown` is to be empty."""

    samples: list[Sample]
    done: Counter[str]
    grown: list[str]

    def __str__(self) -> str:
        last = self.samples[-1]
        said = f"{last.jobs:,} jobs in {last.seconds:,.0f} s: {slopes(self.samples)}"
        return "; ".join([said, *self.grown])


async def soak(folder: Path, out: Path, *, seconds: float, talk: bool = False) -> Report:
    """Run it in an empty folder and write what was measured into `out`."""
    # So short that as many results go as come, long before the end; and longer than a client on a
    # machine that stands still for a moment takes to come for its own.
    retention_s = min(8.0, seconds / 10)
    settings = {
        "STREAM_MODE": "generator",
        "RESULT_RETENTION_S": str(retention_s),
        "SYNC_RETENTION_S": str(retention_s),
        "POLL_HOLD_S": "1",
    }
    server = Server(folder, settings)
    workers = Workers(server.port, ("far", "far"), folder / "workers.log")
    rng = random.Random(0)
    samples: list[Sample] = []
    try:
        async with Hook.open() as hook:
            await server.start()
            async with server.client() as http:
                load = Load(http, server.port, hook.url, seed=0)
                # What is only there from the first use on is there.
                await _under_load(load, server, [], min(5.0, seconds / 3))
                before = await _idle(server, load)
                began = time.monotonic()
                while (left := began + seconds - time.monotonic()) > 0:
                    await _under_load(load, server, samples, min(left, _SAY_S), began)
                    workers.kill_one(rng)
                    if talk:
                        sys.stdout.write(f"{Report(samples, load.done, [])}\n")
                        sys.stdout.flush()
                after = await _idle(server, load)
        workers.close()
        assert await server.stop() == 0, server.last_words()
    finally:
        await server.close()
        workers.close()
        if samples:
            table.write(samples, out / "soak.csv")
    plot(samples, out / "soak.png")
    return Report(samples, load.done, grown(samples, (before, after)))


async def _under_load(
    load: Load, server: Server, samples: list[Sample], seconds: float, began: float | None = None
) -> None:
    start = time.monotonic()
    loading = asyncio.create_task(load.go_on(_CLIENTS, _PAUSE_S))
    try:
        while time.monotonic() - start < seconds:
            await asyncio.wait({loading}, timeout=1.0)
            if loading.done():
                loading.result()
            samples.append(Sample.take(server, time.monotonic() - (began or start), load.jobs))
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


async def _idle(server: Server, load: Load) -> Sample:
    """Wait until all that was left behind is over; return what is still held."""
    deadline = time.monotonic() + _QUIET_S
    sample = Sample.take(server, 0.0, load.jobs)
    steady = 0
    while steady < 4 and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = Sample.take(server, 0.0, load.jobs)
        same = [(a.files, a.threads) for a in now.held] == [
            (b.files, b.threads) for b in sample.held
        ]
        steady = steady + 1 if same else 0
        sample = now
    return sample


def main() -> int:
    out = Path(os.environ.get("SOAK_OUT") or tempfile.mkdtemp(prefix="soak-"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(soak(Path(folder), out, seconds=float(sys.argv[1]), talk=True))
    sys.stdout.write(f"{report}\n{dict(report.done)}\n{out}\n")
    return 1 if report.grown else 0


if __name__ == "__main__":
    sys.exit(main())

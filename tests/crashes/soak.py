"""`python -m tests.crashes.soak SECONDS`: check under a long mixed load that nothing grows.

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
from tests.crashes.growth import find_growth, slopes
from tests.crashes.hook import WebhookReceiver
from tests.crashes.load import Load
from tests.crashes.plot import plot
from tests.crashes.samples import Sample
from tests.crashes.server import Server
from tests.crashes.workers import Workers

_CLIENTS = 8
_PAUSE_S = 0.005
_REPORT_INTERVAL_S = 30
_QUIET_S = 60.0
_MAX_EXTENSION = 5


@dataclass(frozen=True)
class Report:
    """The result of a soak test; `grown` should be empty."""

    samples: list[Sample]
    done: Counter[str]
    grown: list[str]

    def __str__(self) -> str:
        last = self.samples[-1]
        summary = f"{last.jobs:,} jobs in {last.seconds:,.0f} s: {slopes(self.samples)}"
        return "; ".join([summary, *self.grown])


async def soak(
    folder: Path, out: Path, *, seconds: float, min_jobs: int = 0, verbose: bool = False
) -> Report:
    """Run a soak test in an empty folder and write the measurements into `out`.

    On a busy machine it goes on until there were `min_jobs`, at most five times as long: a server
    warms up with the number of its jobs, and the memory that it takes meanwhile is no growth.
    """
    # Short, so that long before the end as many results expire as are added; but longer than a
    # client takes to read its result on a machine that stalls for a moment.
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
        async with WebhookReceiver.open() as receiver:
            await server.start()
            async with server.client() as http:
                load = Load(http, server.port, receiver.url, seed=0)
                # Objects created on first use are not growth: create them before the first sample.
                await _under_load(load, server, [], min(5.0, seconds / 3))
                before = await _idle(server, load)
                began = time.monotonic()
                while (ran_s := time.monotonic() - began) < seconds or (
                    load.jobs < min_jobs and ran_s < _MAX_EXTENSION * seconds
                ):
                    interval_s = min(max(seconds - ran_s, 1.0), _REPORT_INTERVAL_S)
                    await _under_load(load, server, samples, interval_s, began)
                    workers.kill_one(rng)
                    if verbose:
                        sys.stdout.write(f"{Report(samples, load.done, [])}\n")
                        sys.stdout.flush()
                after = await _idle(server, load)
        workers.close()
        assert await server.stop() == 0, server.log_end()
    finally:
        await server.close()
        workers.close()
        if samples:
            table.write(samples, out / "soak.csv")
    plot(samples, out / "soak.png")
    return Report(samples, load.done, find_growth(samples, (before, after)))


async def _under_load(
    load: Load, server: Server, samples: list[Sample], seconds: float, began: float | None = None
) -> None:
    start = time.monotonic()
    loading = asyncio.create_task(load.run_clients(_CLIENTS, _PAUSE_S))
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
    """Wait until files and threads of finished jobs are released; return the last sample."""
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
        report = asyncio.run(soak(Path(folder), out, seconds=float(sys.argv[1]), verbose=True))
    sys.stdout.write(f"{report}\n{dict(report.done)}\n{out}\n")
    return 1 if report.grown else 0


if __name__ == "__main__":
    sys.exit(main())

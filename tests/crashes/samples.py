"""What the server's processes hold, looked at each second."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tests.crashes.processes import open_files, resident_bytes, threads
from tests.crashes.server import Server

PROCESSES = ("server", "store", "engine host")


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    resident_mb: float
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Held:
        return cls(resident_bytes(pid) / 1e6, open_files(pid), threads(pid))


@dataclass(frozen=True)
class Sample:
    """One second: what was done until then, and what is held."""

    seconds: float
    jobs: int
    database_mb: float
    held: tuple[Held, ...]

    @classmethod
    def take(cls, server: Server, seconds: float, jobs: int) -> Sample:
        store, engine = server.store_pid, server.engine_pid
        assert store is not None, server.last_words()
        assert engine is not None, server.last_words()
        database = sum(path.stat().st_size for path in server.database.parent.glob("jobs.sqlite3*"))
        held = tuple(Held.of(pid) for pid in (server.pid, store, engine))
        return cls(seconds, jobs, database / 1e6, held)


def write(samples: Sequence[Sample], path: Path) -> None:
    """Write them as CSV, a line a second."""
    columns = [
        f"{process} {field.name}".replace(" ", "_")
        for process in PROCESSES
        for field in fields(Held)
    ]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["seconds", "jobs", "database_mb", *columns])
        for sample in samples:
            values = [
                value
                for held in sample.held
                for value in (f"{held.resident_mb:.3f}", held.files, held.threads)
            ]
            table.writerow(
                [f"{sample.seconds:.1f}", sample.jobs, f"{sample.database_mb:.3f}", *values]
            )

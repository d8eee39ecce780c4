"""Samples of the memory, files and threads of the server's processes, one a second."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tests.crashes.processes import open_files, resident_bytes, threads
from tests.crashes.server import Server

PROCESSES = ("server", "store", "engine host")


@dataclass(frozen=True)
class ProcessSample:
    """Memory, files and threads of one process."""

    resident_mb: float
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> ProcessSample:
        return cls(resident_bytes(pid) / 1e6, open_files(pid), threads(pid))


@dataclass(frozen=True)
class Sample:
    """The jobs done until one moment, and the resources that the processes hold then."""

    seconds: float
    jobs: int
    database_mb: float
    held: tuple[ProcessSample, ...]

    @classmethod
    def take(cls, server: Server, seconds: float, jobs: int) -> Sample:
        store, engine = server.store_pid, server.engine_pid
        assert store is not None, server.log_end()
        assert engine is not None, server.log_end()
        database = sum(path.stat().st_size for path in server.database.parent.glob("jobs.sqlite3*"))
        held = tuple(ProcessSample.of(pid) for pid in (server.pid, store, engine))
        return cls(seconds, jobs, database / 1e6, held)


def write(samples: Sequence[Sample], path: Path) -> None:
    """Write samples as CSV, one row each."""
    columns = [
        f"{process} {field.name}".replace(" ", "_")
        for process in PROCESSES
        for field in fields(ProcessSample)
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

"""Read the job database from the disk, to compare it with the responses."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True)
class OnDisk:
    """A database that no server has open."""

    healthy: bool
    statuses: Counter[str]
    # How often each job was leased.
    attempts: dict[str, int]
    outputs: dict[str, bytes | None]


def read(path: Path) -> OnDisk:
    """Read the whole database."""
    database = sqlite3.connect(path)
    try:
        (integrity,) = database.execute("PRAGMA integrity_check").fetchone()
        rows = database.execute("SELECT id, status, state, output FROM jobs").fetchall()
    finally:
        database.close()
    return OnDisk(
        healthy=integrity == "ok",
        statuses=Counter(status for _, status, _, _ in rows),
        attempts={job_id: orjson.loads(state)["attempt"] for job_id, _, state, _ in rows},
        outputs={job_id: output for job_id, _, _, output in rows},
    )

"""How much a store keeps, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store keeps, for how long, and how often it tries; the defaults are RunPod's.

    RunPod keeps the result of a `/run` for half an hour and that of a `/runsync` for a minute.
    `max_losses` is how many workers may be lost over a job before it has failed.
    """

    max_jobs: int = 100_000
    max_bytes: int = 2_000_000_000
    max_stream_bytes: int = 100_000_000
    retention_s: float = 30 * 60
    sync_retention_s: float = 60
    max_losses: int = 3

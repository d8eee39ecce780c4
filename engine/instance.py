"""How one host of an engine is doing, for those who show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.hosts.base import Host


class EngineState(StrEnum):
    """Whether requests are answered, will be after a load or restart, or never again."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DEAD = "dead"


def host_state(host: Host) -> EngineState:
    """Return what has become of a host."""
    if host.failure is not None:
        return EngineState.DEAD
    if host.loaded:
        return EngineState.READY
    return EngineState.LOADING if host.downtime is None else EngineState.RESTARTING


@dataclass(frozen=True, slots=True)
class Instance:
    """One copy of a model at a moment.

    `failure` is why it is dead; `trouble` is why it is being restarted, and when that will be.
    """

    state: EngineState
    running: int
    restarts: int
    failure: str | None
    trouble: str | None

    @classmethod
    def of(cls, host: Host) -> Instance:
        """Return how a host is doing."""
        failure, downtime = host.failure, host.downtime
        return cls(
            host_state(host),
            host.running,
            host.restarts,
            failure.message if failure else None,
            downtime.sentence if downtime else None,
        )

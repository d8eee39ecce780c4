"""How one host of an engine is doing, for those who show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.hosts.base import Host


class EngineState(StrEnum):
    """Whether requests are answered, will be after a load or restart, or never again."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


def state_of(host: Host) -> EngineState:
    """Return what has become of a host."""
    if host.failure is not None:
        return EngineState.DEAD
    return EngineState.READY if host.loaded else EngineState.LOADING


@dataclass(frozen=True, slots=True)
class Instance:
    """One copy of a model at a moment; `failure` says why it is dead."""

    state: EngineState
    running: int
    restarts: int
    failure: str | None

    @classmethod
    def of(cls, host: Host) -> Instance:
        """Return how a host is doing."""
        failure = host.failure
        return cls(
            state_of(host), host.running, host.restarts, failure.message if failure else None
        )

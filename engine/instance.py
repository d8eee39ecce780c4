"""The state of an engine's hosts, for health reports and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.hosts.base import Host


class EngineState(StrEnum):
    """Whether requests run now, will run after a load or restart, or never again.

    A model that is `unloaded` is loaded for the next request.
    """

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    UNLOADED = "unloaded"
    DEAD = "dead"


def host_state(host: Host) -> EngineState:
    """Return the state of a host."""
    if host.failure is not None:
        return EngineState.DEAD
    if host.loaded:
        return EngineState.READY
    return EngineState.LOADING if host.downtime is None else EngineState.RESTARTING


@dataclass(frozen=True, slots=True)
class Instance:
    """The state of one copy of a model at one moment.

    `failure` is why it is dead. `trouble` is why it is being restarted, and when.
    """

    state: EngineState
    running: int
    restarts: int
    failure: str | None
    trouble: str | None

    @classmethod
    def of(cls, host: Host) -> Instance:
        """Return the current state of a host."""
        failure, downtime = host.failure, host.downtime
        return cls(
            host_state(host),
            host.running,
            host.restarts,
            failure.message if failure else None,
            downtime.sentence if downtime else None,
        )

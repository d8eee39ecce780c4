"""The states of the engine's process, and which of them follow one another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ProcessState(StrEnum):
    """The states of the engine's process that its host distinguishes.

    Runs start only in `LOADED`. After `FAILED` or `CLOSED` the host starts no further process.
    """

    UNLOADED = "unloaded"  # There is no process: none was started yet, or it was unloaded.
    STARTING = "starting"  # It loads the model.
    LOADED = "loaded"
    RETIRING = "retiring"  # It has a stuck run: its other runs finish before it is killed.
    KILLED = "killed"  # It was killed, and its end is not noticed yet.
    DOWN = "down"  # It has ended or could not be started; the next one starts after a pause.
    UNLOADING = "unloading"  # It unloads the model and exits, because the model is not wanted.
    FAILED = "failed"
    CLOSED = "closed"


NEXT_STATES: Mapping[ProcessState, frozenset[ProcessState]] = {
    # The system may refuse the start (down), or the configuration cannot be sent (failed).
    ProcessState.UNLOADED: frozenset(
        {
            ProcessState.STARTING,
            ProcessState.DOWN,
            ProcessState.UNLOADING,
            ProcessState.FAILED,
            ProcessState.CLOSED,
        }
    ),
    # A run that was sent as the process before it ended can be stuck already (retiring).
    ProcessState.STARTING: frozenset(
        {
            ProcessState.LOADED,
            ProcessState.RETIRING,
            ProcessState.KILLED,
            ProcessState.DOWN,
            ProcessState.UNLOADING,
            ProcessState.FAILED,
            ProcessState.CLOSED,
        }
    ),
    ProcessState.LOADED: frozenset(
        {
            ProcessState.RETIRING,
            ProcessState.DOWN,
            ProcessState.UNLOADING,
            ProcessState.CLOSED,
        }
    ),
    # The stuck run may still end (loaded).
    ProcessState.RETIRING: frozenset(
        {
            ProcessState.LOADED,
            ProcessState.KILLED,
            ProcessState.DOWN,
            ProcessState.UNLOADING,
            ProcessState.CLOSED,
        }
    ),
    ProcessState.KILLED: frozenset(
        {ProcessState.DOWN, ProcessState.UNLOADING, ProcessState.CLOSED}
    ),
    # It stays down if the system refuses the next start; another event loop starts one at once
    # (unloaded).
    ProcessState.DOWN: frozenset(
        {
            ProcessState.STARTING,
            ProcessState.DOWN,
            ProcessState.UNLOADED,
            ProcessState.UNLOADING,
            ProcessState.FAILED,
            ProcessState.CLOSED,
        }
    ),
    # A process that had failed before is failed after it was unloaded, too.
    ProcessState.UNLOADING: frozenset(
        {ProcessState.UNLOADED, ProcessState.FAILED, ProcessState.CLOSED}
    ),
    # A model that is loaded for requests is tried again (unloaded).
    ProcessState.FAILED: frozenset(
        {
            ProcessState.UNLOADED,
            ProcessState.UNLOADING,
            ProcessState.FAILED,
            ProcessState.CLOSED,
        }
    ),
    ProcessState.CLOSED: frozenset({ProcessState.CLOSED}),
}


def check_transition(state: ProcessState, next_state: ProcessState) -> None:
    """Refuse a state that cannot follow. Raises RuntimeError: the caller has a bug."""
    if next_state not in NEXT_STATES[state]:
        raise RuntimeError(f"the engine process cannot become {next_state} while it is {state}")

"""The result of one job, and the reasons to run a job again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from engine.errors import EngineCrashed, EngineReplaced, EngineRestarting, EngineUnavailable


class Interruption(Enum):
    """Why a job has no result of its own and should run again."""

    # The job was running when the engine crashed, and may be the cause.
    CRASH = auto()
    # The engine was stopped because of another request, is restarting, or is dead.
    NO_ENGINE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job for a queue that stores JSON: either the encoded output or the error.

    `retryable` is true for an error that may not occur on the next attempt. `interruption` is set
    if the engine failed during the job: a queue can run the job again instead of failing it.
    `reason` is then the error as one sentence; `error` may be in OpenAI's format.
    """

    output: bytes | None = None
    error: str | None = None
    retryable: bool = False
    interruption: Interruption | None = None
    reason: str | None = None


def find_interruption(error: Exception, *, is_dead: bool) -> Interruption | None:
    """Return why a job that ended with `error` should run again, or None.

    `is_dead` states that no model can answer any more. While other models can, the jobs of a dead
    model fail instead.
    """
    if isinstance(error, EngineReplaced | EngineRestarting):
        return Interruption.NO_ENGINE
    if isinstance(error, EngineCrashed):
        return Interruption.CRASH
    if isinstance(error, EngineUnavailable) and is_dead:
        return Interruption.NO_ENGINE
    return None

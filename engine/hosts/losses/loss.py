"""How the engine's process was lost: why it ended, or why it could not be started."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import BackendConfig
from engine.errors import EngineError
from engine.hosts.child_process import EngineProcess
from engine.hosts.losses.crash_advice import crash_note
from engine.hosts.memory_limit import memory_note
from engine.hosts.output_tail import OutputTail


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of one process, or a start that the system refused.

    `lived_s` is how many seconds the process ran; 0 if its host killed it or it was never started.
    `has_crashed` is true if a fault of its own ended it, and false for a signal from outside.
    """

    reason: str
    last_line: str
    lived_s: float = 0.0
    was_started: bool = True
    was_killed: bool = False
    has_crashed: bool = False


async def describe_loss(
    process: EngineProcess | None,
    start_error: OSError | RuntimeError | None,
    kill_reason: EngineError | None,
    output_tail: OutputTail,
    config: BackendConfig,
    *,
    has_loaded: bool,
) -> Loss:
    """Wait for the end of a process, and return why it was lost.

    `start_error` is why the system refused to start it, and `kill_reason` why its host killed it.
    """
    if start_error is not None:
        reason = f"the engine process cannot be started: {start_error}"
        return Loss(reason, output_tail.last_line(), was_started=False)
    exit_description, exit_code = "the engine process is gone", None
    if process is not None:
        exit_description, exit_code = await process.wait_for_exit(), process.returncode
    reason = kill_reason.message if kill_reason else exit_description
    reason += memory_note(exit_code, output_tail.lines(), config.memory_mb)
    if not has_loaded:
        reason += crash_note(exit_code, config.backend)
    return Loss(
        reason,
        output_tail.last_line(),
        0.0 if kill_reason or process is None else process.age_s,
        was_killed=kill_reason is not None,
        has_crashed=process is not None and process.has_crashed,
    )

"""The time limits of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits in seconds.

    Three limits apply to a run that produces nothing. Prefill produces nothing by nature, and on
    RKLLM it cannot be interrupted: `prefill_timeout_s` counts from the start of a run to its first
    token. `stall_timeout_s` is the longest time between two tokens. `abort_grace_s` is how long a
    run may go on after an abort; then it counts as stuck.

    `request_timeout_s` is the limit of a whole request, waiting included, and `load_timeout_s` of
    loading the model. `neighbour_grace_s` is how long other runs may continue before a process with
    a stuck run is killed. The engine is not restarted any more after `down_limit_s` without a
    loaded model since a crash.
    """

    prefill_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    abort_grace_s: float = 10.0
    request_timeout_s: float = 600.0
    load_timeout_s: float = 600.0
    neighbour_grace_s: float = 60.0
    down_limit_s: float = 300.0

"""The clocks that keep every wait bounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits in seconds, each for a different kind of silence.

    Three of them, because a silent engine means different things: prefill is silent by nature and
    on RKLLM cannot be interrupted (`prefill_timeout_s`, from the start of a run to its first
    token); a token that does not come is a stall (`stall_timeout_s`); a run that goes on after an
    abort has wedged (`abort_grace_s`). `request_timeout_s` is the request's own limit, waiting
    included; `load_timeout_s` bounds the loading of the model.

    `neighbour_grace_s` is how long the other runs may go on beside one that has wedged, before the
    process is killed. After `down_limit_s` without a loaded model since a crash the engine is not
    started any more.
    """

    prefill_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    abort_grace_s: float = 10.0
    request_timeout_s: float = 600.0
    load_timeout_s: float = 600.0
    neighbour_grace_s: float = 60.0
    down_limit_s: float = 300.0

"""The time limits of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from engine.prompts.prompt_size import estimate_tokens
from engine.request import Prompt

# Boards computed 8,000 tokens in 226 s, and 16,000 in more than 300 s (rkllama#169).
PREFILL_TIMEOUT_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits in seconds.

    Three limits apply to a run that produces nothing. Prefill produces nothing by nature, and on
    RKLLM it cannot be interrupted: `prefill_timeout_s` counts from the start of a run to its first
    token, and longer prompts have more (`prefill_limit_s`). `stall_timeout_s` is the longest time
    between two tokens. `abort_grace_s` is how long a run may go on after an abort; then it counts
    as stuck.

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

    def prefill_limit_s(self, prompt: Prompt) -> float:
        """Return the time limit of computing a prompt.

        It is `prefill_timeout_s` for up to `PREFILL_TIMEOUT_TOKENS`, and in proportion for more.
        """
        return self.prefill_timeout_s * max(1.0, estimate_tokens(prompt) / PREFILL_TIMEOUT_TOKENS)

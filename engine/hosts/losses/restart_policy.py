"""How long to wait before a crashed host is started again, and when another start is useless."""

from __future__ import annotations

from engine.errors import EngineDead
from engine.hosts.losses.loss import Loss

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 30.0
# The crash of a host that has run this long is counted as the first one of a new row.
STEADY_S = 600.0
# How often a host that has never finished a request is started: a damaged file crashes the library
# each time, in the load or in the runs.
MAX_FIRST_CRASHES = 5
# How often a first load is repeated if its error may be caused by another program, and the pause
# before: the kernel frees the memory of an NPU some time after a process has ended.
MAX_LOAD_RETRIES = 2
LOAD_RETRY_PAUSE_S = 2.0


class RestartPolicy:
    """Counts crashes and failed loads, and decides by them about the next start.

    Owned by the host's event loop.
    """

    __slots__ = ("_failed_loads", "_has_finished_run", "crashes_in_a_row", "has_loaded")

    def __init__(self) -> None:
        # Since the last request that was finished.
        self.crashes_in_a_row = 0
        self.has_loaded = False
        self._failed_loads = 0
        # Whether a run has ended without a crash since this host started.
        self._has_finished_run = False

    def reset(self) -> None:
        """Forget the crashes: the host has finished a request."""
        self.crashes_in_a_row = 0

    def forget_failures(self) -> None:
        """Forget the crashes and the failed loads: the model may be another one by now."""
        self.reset()
        self._failed_loads = 0

    def record_finished_run(self) -> None:
        """Note that a run has ended without a crash."""
        self.reset()
        self._has_finished_run = True

    def record_load(self, *, has_run: bool) -> None:
        """Record that the model is loaded; `has_run` is whether a trial run on it has ended."""
        self.has_loaded = True
        self._has_finished_run |= has_run

    def record_failed_load(self, *, is_transient: bool) -> bool:
        """Count a load that failed, and return whether the model may load if it is repeated.

        A model that has loaded before may load again: an NPU's memory is not free at once. So may
        one that another program has kept from loading (`is_transient`).
        """
        self._failed_loads += 1
        return self.has_loaded or (is_transient and self._failed_loads <= MAX_LOAD_RETRIES)

    def record_crash(self, lived_s: float) -> None:
        """Count a crash; `lived_s` is how long the host has run, 0 if it had to be killed."""
        if lived_s > STEADY_S:
            self.crashes_in_a_row = 0
        self.crashes_in_a_row += 1

    @property
    def is_last_start(self) -> bool:
        """Whether the host gives up if the next start ends in a crash, too."""
        return self.crashes_in_a_row == MAX_FIRST_CRASHES - 1 and not self._has_finished_run

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: doubled with each crash, up to a maximum."""
        doublings = min(max(self.crashes_in_a_row - 1, 0), 30)
        pause_s = min(FIRST_BACKOFF_S * 2.0**doublings, MAX_BACKOFF_S)
        if self._failed_loads and not self.has_loaded:
            return max(pause_s, LOAD_RETRY_PAUSE_S)
        return pause_s

    def find_fatal_error(self, loss: Loss, down_s: float, down_limit_s: float) -> EngineDead | None:
        """Return why the host is not started any more; None if it will be.

        `down_s` is how long it had no loaded model, and `down_limit_s` how long it may have none.
        """
        count, details = self.crashes_in_a_row, f"{loss.reason}; last output: {loss.last_line}"
        if not self._has_finished_run and loss.was_started and count >= MAX_FIRST_CRASHES:
            when = (
                "and has not finished one request since its start"
                if self.has_loaded
                else "while it loaded the model for the first time"
            )
            return EngineDead(
                f"the engine crashed {count} times in a row {when}, and is not started again: "
                f"{details}"
            )
        if down_s < down_limit_s:
            return None
        return EngineDead(
            f"the engine could not be started again within {down_limit_s:g} s "
            f"(ENGINE_DOWN_EXIT_S), after {count} crashes in a row: {details}"
        )

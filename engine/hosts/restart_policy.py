"""How long to wait before a crashed host is started again, and when another start is useless."""

from __future__ import annotations

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 30.0
# The crash of a host that has run this long is counted as the first one of a new row.
STEADY_S = 600.0
# How often a host that has never finished a request is started: a damaged file crashes the library
# each time, in the load or in the runs.
MAX_FIRST_CRASHES = 5
# How often a first load is repeated whose error says that another program may be the reason, and
# the pause before: the kernel frees the memory of an NPU some time after a process has ended.
MAX_LOAD_RETRIES = 2
LOAD_RETRY_PAUSE_S = 2.0


class RestartPolicy:
    """Counts the crashes since the last finished request. Owned by the host's event loop."""

    __slots__ = ("crashes_in_a_row",)

    def __init__(self) -> None:
        self.crashes_in_a_row = 0

    def reset(self) -> None:
        """Forget the crashes: the host has finished a request."""
        self.crashes_in_a_row = 0

    def record_crash(self, lived_s: float) -> None:
        """Count a crash; `lived_s` is how long the host has run, 0 if it had to be killed."""
        if lived_s > STEADY_S:
            self.crashes_in_a_row = 0
        self.crashes_in_a_row += 1

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: doubled with each crash, up to a maximum."""
        doublings = min(max(self.crashes_in_a_row - 1, 0), 30)
        return min(FIRST_BACKOFF_S * 2.0**doublings, MAX_BACKOFF_S)

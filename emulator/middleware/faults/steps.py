"""The steps of a response that has faults: writes, pauses and ends of the connection."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Pause between two writes that the client must receive apart, in seconds.
WRITE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Write:
    """Send bytes of the body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class RawWrite:
    """Send bytes on the connection itself, outside of the HTTP chunks."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing for `seconds`."""

    seconds: float


class StreamEnd(Enum):
    """How a fault ends a stream early."""

    CUT = "cut the connection"
    RESET = "reset the connection"
    HALF_CLOSE = "close the server's direction of the connection"
    COMPLETE = "end the response"


Step = Write | RawWrite | Pause | StreamEnd

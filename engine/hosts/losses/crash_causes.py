"""Which requests have ended the engine's process, so that none of them ends it again and again."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import RequestRejected
from engine.hosts.frames import encode
from engine.request import GenerationRequest, Priority

# How long a request is refused: the library or the model may be another one later.
REFUSED_FOR_S = 600.0
_MAX_CAUSES = 256
# As many attempts as a job has.
_MAX_JOB_CRASHES = 3

# A run's request, or the name and the argument of a side call.
Work = GenerationRequest | tuple[str, Any]


@dataclass(slots=True)
class _Cause:
    reason: str
    is_certain: bool
    last_s: float
    crashes: int


class CrashCauses:
    """Remembers what ran when the engine's process crashed.

    Clients repeat a request that failed, and each crash costs all others their answers. So a
    request is refused after a crash in which it ran alone, or if no other one ran in two crashes.
    The run of a job has attempts of its own, the last of them alone: the same run of another job is
    refused when these are used up. Owned by the event loop; the copies of a model share one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: OrderedDict[bytes, _Cause] = OrderedDict()

    def record(self, running: Sequence[Work], reason: str) -> None:
        """Count a crash against what ran on the process."""
        now_s = self._clock()
        keys = {_digest(each): _has_attempts(each) for each in running}
        keys.pop(b"", None)
        earlier = {key: self._count_crashes(key, now_s) for key in keys}
        repeated = {key for key, has_attempts in keys.items() if earlier[key] and not has_attempts}
        for key, has_attempts in keys.items():
            crashes = earlier[key] + 1
            is_certain = len(running) == 1 or repeated == {key}
            if has_attempts:
                is_certain = len(running) == 1 and crashes >= _MAX_JOB_CRASHES
            self._causes.pop(key, None)
            self._causes[key] = _Cause(reason, is_certain, now_s, crashes)
        while len(self._causes) > _MAX_CAUSES:
            self._causes.popitem(last=False)

    def check(self, work: Work) -> None:
        """Refuse a request that has crashed the process. Raises RequestRejected."""
        if not self._causes:
            return
        cause = self._causes.get(_digest(work))
        if cause is None or not cause.is_certain:
            return
        if _has_attempts(work) and cause.crashes < _MAX_JOB_CRASHES:
            return
        left_s = cause.last_s + REFUSED_FOR_S - self._clock()
        if left_s > 0:
            raise RequestRejected(
                f"the same request has ended the engine before ({cause.reason}), and is not run "
                f"again for {left_s:.0f} s"
            )

    def _count_crashes(self, key: bytes, now_s: float) -> int:
        cause = self._causes.get(key)
        return cause.crashes if cause is not None and now_s - cause.last_s < REFUSED_FOR_S else 0


def _has_attempts(work: Work) -> bool:
    return isinstance(work, GenerationRequest) and work.priority is not Priority.INTERACTIVE


def _digest(work: Work) -> bytes:
    if isinstance(work, GenerationRequest):
        work = ("run", (work.prompt, work.sampling.to_wire()))
    try:
        return hashlib.sha256(encode(work)).digest()
    except TypeError:
        # It cannot be sent to the process, so it has not crashed it.
        return b""

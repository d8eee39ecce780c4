"""Puts a clock that jumps by days into each process: a board without one is set by the network."""

import itertools
import time

_DAY_S = 86_400
_set = time.time
_ahead_s = itertools.cycle((0, _DAY_S, -365 * _DAY_S, 30 * _DAY_S))


def _jumping() -> float:
    return _set() + next(_ahead_s)


time.time = _jumping

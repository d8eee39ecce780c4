"""Python that came with a model and may never end, ended in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLongError(BaseException):
    """It had not ended in time.

    No Exception: whatever catches one on the way would go on, and be looked at no more.
    """


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, if that takes no longer.

    Each line that it comes to is looked at on the way: slow, and it ends a loop on whichever thread
    this is, where a signal reaches but one. For what is done once.

    Raises:
        TookTooLongError: it took longer.
    """
    deadline = time.monotonic() + limit_s

    def look(frame: FrameType, event: str, told: Any) -> Any:
        if time.monotonic() > deadline:
            raise TookTooLongError
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        return work()
    finally:
        sys.settrace(before)

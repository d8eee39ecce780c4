"""The lines that the workers print, which the server logs."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Sequence

MAX_LINES = 200
# The autoscaler's names of workers begin the lines that it logs for them.
_WORKER_LINE = re.compile(r"launched-[0-9a-f]+-\d+: (.*)", re.DOTALL)
# Messages that RunPod's SDK logs about every job. The error of a job has the exception, too.
_SDK_MESSAGE = re.compile(
    r"Started\.|Finished\.|Jobs in (?:queue|progress): \d+|Captured Handler Exception"
    r'|\{\s*"error_type":.*',
    re.DOTALL,
)


class WorkerLog(logging.Handler):
    """Collects the last lines that workers have printed, without the names of the workers.

    Lines that the SDK logs about every job are left out.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=MAX_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it is a line of a worker's handler."""
        match = _WORKER_LINE.fullmatch(record.getMessage())
        if match is not None and not _is_from_sdk(match[1]):
            self._lines.append(match[1])

    def take_lines(self) -> Sequence[str]:
        """Return the lines since the last call."""
        lines = list(self._lines)
        self._lines.clear()
        return lines


def _is_from_sdk(line: str) -> bool:
    if not line.startswith('{"requestId"'):
        return False
    try:
        message = json.loads(line)["message"]
    except (ValueError, KeyError):
        return False
    return isinstance(message, str) and _SDK_MESSAGE.fullmatch(message) is not None

"""The output of an endpoint's workers while a test runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from emulator.autoscaling.worker_log import WorkerLogs
from emulator.runpod.sdk_log_line import parse_sdk_line

MAX_LINES = 200
# Messages that RunPod's SDK logs about every job. The error of a job has the exception, too.
_SDK_MESSAGE = re.compile(
    r"Started\.|Finished\.|Jobs in (?:queue|progress): \d+|Captured Handler Exception"
    r'|\{\s*"error_type":.*',
    re.DOTALL,
)


class WorkerOutput:
    """Reads the logs of an endpoint's workers from where it has read them before.

    Lines that the SDK logs about every job are left out.
    """

    def __init__(self, logs: WorkerLogs, endpoint: str) -> None:
        self._logs = logs
        self._endpoint = endpoint
        # The number of the last line that was read, by worker.
        self._last_numbers: dict[str, int] = {}

    def take_lines(self) -> Sequence[str]:
        """Return the last lines since the last call, at most `MAX_LINES`."""
        return list(self._read_lines())[-MAX_LINES:]

    def _read_lines(self) -> Iterator[str]:
        for worker in self._logs.names(self._endpoint):
            log = self._logs.find(self._endpoint, worker)
            if log is None:
                continue
            for line in log.lines_after(self._last_numbers.get(worker, 0)):
                message, _, _ = parse_sdk_line(line.text)
                is_from_sdk = message != line.text
                if line.source == "container" and not (
                    is_from_sdk and _SDK_MESSAGE.fullmatch(message)
                ):
                    yield message
            self._last_numbers[worker] = log.last_number

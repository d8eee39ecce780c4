"""Describe how a worker's process ended, for the log, `/health` and the errors of jobs."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from common.child_processes import describe_exit
from emulator.runpod.sdk_log_line import parse_sdk_line

# Lines of the SDK that do not concern the handler. The first comes after a failed fitness check,
# whose reason is in the line before it.
_SDK_LINES = (
    # Docker's hints after an error of its own.
    "See 'docker run --help'",
    "Run 'docker run --help'",
    "Worker is unhealthy, exiting.",
    "--- Starting Serverless Worker ",
    "Jobs in queue: ",
    "Jobs in progress: ",
    "Started.",
    "Finished.",
)
# The supervisor returns this number plus the signal's, as a shell does.
_SIGNAL_BASE = 128
# The exit code of a worker that was killed, by its user or because memory ran out.
KILLED = _SIGNAL_BASE + signal.SIGKILL
NO_WORKER_STARTED = (
    'without starting a worker; it must call runpod.serverless.start({"handler": handler})'
)


def describe_worker_exit(code: int) -> str:
    """Return how a worker ended, as a predicate: "exited with code 1", "was killed by SIGSEGV"."""
    number = code - _SIGNAL_BASE
    if code == KILLED:
        return "was killed by SIGKILL, as the kernel does when memory runs out"
    is_signal = any(number == known for known in signal.Signals)
    return describe_exit(-number if is_signal else code)


def last_printed_line(output: Sequence[str]) -> str:
    """Return the last line that is not indented, which ends a traceback; "" if there is none.

    Of a line of the SDK's logger, it is the message.
    """
    for line in reversed(output):
        message, _, _ = parse_sdk_line(line)
        is_of_sdk = message.startswith(_SDK_LINES) or _SDK_LINES[0] in line
        if line and not line[0].isspace() and not is_of_sdk:
            return " ".join(message.splitlines())
    return ""


def explain_worker_exit(code: int, output: Sequence[str], end_reason: str | None = None) -> str:
    """Return how a worker ended and its last line of output, as a predicate.

    An `end_reason` says more than the code.
    """
    ended = end_reason or describe_worker_exit(code)
    line = last_printed_line(output)
    return f"{ended}; its last line: {line}" if line else f"{ended} and printed nothing"


def explain_failed_start(code: int, output: Sequence[str], end_reason: str | None = None) -> str:
    """Return why a worker ended before it asked for a job, as a predicate."""
    if code == 0:
        return f"{describe_worker_exit(code)} {NO_WORKER_STARTED}"
    return explain_worker_exit(code, output, end_reason)

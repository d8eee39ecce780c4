"""How much memory the jobs of a store take, so that MAX_JOBS_MB limits the process."""

from __future__ import annotations

from jobs.model import Job, Json

# Measured: the objects around the content of a job, of an endpoint and of a chunk. Clients choose
# how many there are, so a limit of the content alone would limit nothing.
JOB_OVERHEAD_BYTES = 1_200
ENDPOINT_OVERHEAD_BYTES = 2_600
CHUNK_OVERHEAD_BYTES = 150


def job_memory_bytes(job: Job) -> int:
    """Return how much memory a job takes, without its stream."""
    size = JOB_OVERHEAD_BYTES + job.size + _text_bytes(job.endpoint)
    # Without a loop: every change of a job is counted twice.
    if job.webhook is not None:
        size += _text_bytes(job.webhook)
    return size if job.error is None else size + _text_bytes(job.error)


def chunks_memory_bytes(content_bytes: int, count: int) -> int:
    """Return how much memory `count` chunks take whose values have `content_bytes` together."""
    return content_bytes + count * CHUNK_OVERHEAD_BYTES


def _text_bytes(text: str) -> int:
    # One character beyond ASCII can make all of them take four bytes.
    return len(text) if text.isascii() else 4 * len(text)


def copy_exactly(value: Json) -> Json:
    """Return a copy of a value that takes only as much memory as its length.

    orjson returns bytes whose buffer stays as large as it was while they were written: at least
    4 KB for a few characters (measured).
    """
    return bytes(memoryview(value))

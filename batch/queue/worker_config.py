"""How a worker takes messages: by its settings, its engine and its queue."""

from __future__ import annotations

import os
import socket

from batch.queue.worker import WorkerConfig
from batch.settings import BatchSettings
from jobs.sqs.attributes import QueueAttributes
from jobs.sqs.errors import QueueRefused


def build_worker_config(
    settings: BatchSettings, facts: QueueAttributes, slots: int, *, until_empty: bool
) -> WorkerConfig:
    """Return a worker's terms. Raises QueueRefused: the queue would take messages away too soon."""
    if facts.max_receives is not None and facts.max_receives < 2:
        raise QueueRefused(
            f"{facts.url}: maxReceiveCount of its redrive policy must be 2 or more, got "
            f"{facts.max_receives}: the last receive is for the error alone"
        )
    return WorkerConfig(
        queue_url=facts.url,
        worker_id=f"{socket.gethostname()}-{os.getpid()}",
        slots=slots,
        concurrency=settings.batch_at_once or 2 * slots,
        lease_s=settings.batch_lease_s,
        poll_s=settings.batch_poll_s,
        max_attempts=settings.batch_tries,
        max_receives=facts.max_receives or settings.batch_receives,
        dead_letters=facts.dead_letter_arn is not None,
        until_empty=until_empty,
    )

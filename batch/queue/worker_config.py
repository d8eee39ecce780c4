"""The configuration of a queue worker, from its settings, engine and queue."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from batch.settings import BatchSettings
from jobs.sqs.attributes import QueueAttributes
from jobs.sqs.errors import QueueRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Limits and intervals of a worker.

    The worker answers `slots` messages at a time and holds `concurrency`, so that the next one is
    there when a slot is free. Each has a lease of `lease_s`, renewed after a third of it.
    `max_attempts` limits the writes of one answer. Receive number `max_receives` makes no attempt:
    it only writes the error, because a message may have killed every worker that tried it. With
    `has_dead_letter_queue`, SQS moves the message there afterwards.
    """

    queue_url: str
    worker_id: str
    slots: int
    concurrency: int
    lease_s: float
    poll_s: float
    max_attempts: int
    max_receives: int
    has_dead_letter_queue: bool
    until_empty: bool = False


def build_worker_config(
    settings: BatchSettings, attributes: QueueAttributes, slots: int, *, until_empty: bool
) -> WorkerConfig:
    """Return a worker's configuration.

    Raises QueueRefused if the redrive policy moves messages before a worker can store their error.
    """
    if attributes.max_receives is not None and attributes.max_receives < 2:
        raise QueueRefused(
            f"{attributes.url}: maxReceiveCount of its redrive policy must be 2 or more, got "
            f"{attributes.max_receives}: the last receive is for the error alone"
        )
    return WorkerConfig(
        queue_url=attributes.url,
        worker_id=f"{socket.gethostname()}-{os.getpid()}",
        slots=slots,
        concurrency=settings.batch_at_once or 2 * slots,
        lease_s=settings.batch_lease_s,
        poll_s=settings.batch_poll_s,
        max_attempts=settings.batch_tries,
        max_receives=attributes.max_receives or settings.batch_receives,
        has_dead_letter_queue=attributes.dead_letter_arn is not None,
        until_empty=until_empty,
    )

"""From a message of SQS to the job that it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jobs.model import Job, JobStatus
from jobs.sqs.bodies import SIZES, Bodies, body_of

# What has to be asked for with every receive.
ASKED = {
    "MessageSystemAttributeNames": ["ApproximateReceiveCount", "SentTimestamp"],
    "MessageAttributeNames": [*SIZES],
}


def job_of(
    endpoint: str, worker_id: str | None, message: Mapping[str, Any], bodies: Bodies | None
) -> Job:
    """Return a message as a worker's job; each receive is an attempt.

    Blocks while its body is read from a bucket. Raises QueueRefused, StoreUnavailable.
    """
    known = message["Attributes"]
    attempt = int(known["ApproximateReceiveCount"])
    sent_at = int(known["SentTimestamp"]) / 1000
    return Job(
        id=message["MessageId"],
        endpoint=endpoint,
        input=body_of(message["Body"], message.get("MessageAttributes", {}), bodies),
        created_at=sent_at,
        queued_at=sent_at,
        status=JobStatus.IN_PROGRESS,
        attempt=attempt,
        losses=attempt - 1,
        worker_id=worker_id,
        started_at=time.time(),
    )

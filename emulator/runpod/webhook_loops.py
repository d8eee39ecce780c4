"""Stops loops of webhooks: a webhook calls `/run`, the new job has a webhook too, and so on.

The body of a webhook is a valid job: it has the `input` and the `webhook` of the job that ended.
Without a limit, one request could start jobs forever, on one server or between two. Therefore each
webhook request has a header with the number of webhooks in the chain, the job that it starts keeps
that number, and a chain that is too long is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from common.digits import parse_digits
from handler.errors import InvalidRequest
from jobs import Job

DEPTH_HEADER = "x-webhook-depth"
# The key of a job's `extra` that has its depth; it is not sent to workers.
DEPTH_KEY = "webhookDepth"
# A webhook may start a job. An application that builds longer chains of jobs sends requests of its
# own, for which the count starts again at 0.
MAX_DEPTH = 3


def received_depth(headers: Mapping[str, str]) -> int:
    """Return the number of webhooks in the chain that led to a request; 0 for a client's request.

    Raises:
        InvalidRequest: the chain is longer than `MAX_DEPTH`.
    """
    value = headers.get(DEPTH_HEADER)
    if value is None:
        return 0
    depth = parse_digits(value, max_digits=3)
    if depth is None or depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{DEPTH_HEADER} must be a number up to {MAX_DEPTH}: webhooks that start jobs, whose "
            "webhooks start jobs again, are stopped here"
        )
    return depth


def depth_of(job: Job) -> int:
    """Return the number of webhooks in the chain that led to a job."""
    # Most jobs have no depth, and need no JSON parsing.
    if not job.extra or DEPTH_KEY.encode() not in job.extra:
        return 0
    depth = orjson.loads(job.extra).get(DEPTH_KEY, 0)
    return depth if isinstance(depth, int) else 0

"""Loops of webhooks: a webhook that calls `/run`, whose job has a webhook, and so on.

Such a body is a valid job: it has the `input` and the `webhook` of the job that ended. Without a
bound, one request would start jobs for ever, on one server or between two. A post of a webhook
therefore has a header with the number of webhooks in a row, the job that it starts keeps that
number, and a long row is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from handler.errors import InvalidRequest
from jobs import Job

DEPTH_HEADER = "x-webhook-depth"
# Where a job keeps its number; no worker is given it.
DEPTH_KEY = "webhookDepth"
# A job may be started by a webhook, but a chain of jobs is built by an application, which sends
# requests of its own: their count starts anew.
MAX_DEPTH = 3


def received_depth(headers: Mapping[str, str]) -> int:
    """Return how many webhooks in a row have led to a request; 0 for a client's own request.

    Raises:
        InvalidRequest: there are more than `MAX_DEPTH`.
    """
    written = headers.get(DEPTH_HEADER)
    if written is None:
        return 0
    depth = int(written) if written.isascii() and written.isdigit() and len(written) < 4 else None
    if depth is None or depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{DEPTH_HEADER} must be a number up to {MAX_DEPTH}: webhooks that start jobs, whose "
            "webhooks start jobs again, are stopped here"
        )
    return depth


def depth_of(job: Job) -> int:
    """Return how many webhooks in a row have led to a job."""
    # Most jobs have nothing there.
    if not job.extra or DEPTH_KEY.encode() not in job.extra:
        return 0
    depth = orjson.loads(job.extra).get(DEPTH_KEY, 0)
    return depth if isinstance(depth, int) else 0

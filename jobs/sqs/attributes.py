"""Attributes of an SQS queue."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from jobs.sqs.bodies import MAX_INLINE_BYTES
from jobs.sqs.calls import SqsCaller

_WAITING_COUNTS = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
_LEASED_COUNT = "ApproximateNumberOfMessagesNotVisible"


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """The kind of a queue and its limits.

    SQS moves a message that was received `max_receives` times to the dead-letter queue with the ARN
    `dead_letter_arn`. Both are None without a dead-letter queue. A message body of more than
    `max_inline_bytes` is stored in a bucket.
    """

    url: str
    is_fifo: bool
    max_inline_bytes: int
    max_receives: int | None = None
    dead_letter_arn: str | None = None


async def fetch_attributes(calls: SqsCaller, queue_url: str) -> QueueAttributes:
    """Fetch the attributes of a queue. Raises QueueRefused, StoreUnavailable."""
    answer = await calls.call(
        "get_queue_attributes",
        queue_url,
        QueueUrl=queue_url,
        AttributeNames=["MaximumMessageSize", "RedrivePolicy"],
    )
    attributes = answer.get("Attributes", {})
    is_fifo = queue_url.endswith(".fifo")
    max_bytes = int(attributes.get("MaximumMessageSize", MAX_INLINE_BYTES))
    max_inline_bytes = min(MAX_INLINE_BYTES, max_bytes)
    if "RedrivePolicy" not in attributes:
        return QueueAttributes(queue_url, is_fifo, max_inline_bytes)
    policy = orjson.loads(attributes["RedrivePolicy"])
    return QueueAttributes(
        queue_url,
        is_fifo,
        max_inline_bytes,
        int(policy["maxReceiveCount"]),
        policy["deadLetterTargetArn"],
    )


async def fetch_queue_url(calls: SqsCaller, arn: str) -> str:
    """Return the URL of the queue with this ARN. Raises QueueRefused, StoreUnavailable."""
    account, name = arn.split(":")[-2:]
    answer = await calls.call("get_queue_url", arn, QueueName=name, QueueOwnerAWSAccountId=account)
    return str(answer["QueueUrl"])


async def count_messages(calls: SqsCaller, queue_url: str) -> tuple[int, int]:
    """Return approximately how many messages wait, and how many are leased.

    Raises QueueRefused, StoreUnavailable.
    """
    answer = await calls.call(
        "get_queue_attributes",
        queue_url,
        QueueUrl=queue_url,
        AttributeNames=[*_WAITING_COUNTS, _LEASED_COUNT],
    )
    attributes = answer["Attributes"]
    return sum(int(attributes[name]) for name in _WAITING_COUNTS), int(attributes[_LEASED_COUNT])

"""What a queue of SQS is like, as its attributes say."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from jobs.sqs.bodies import INLINE_BYTES
from jobs.sqs.calls import Calls

_WAITING = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
_LEASED = "ApproximateNumberOfMessagesNotVisible"


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue's kind and its limits.

    `dead_letters` is the ARN of its dead-letter queue, to which SQS moves a message that was
    received `max_receives` times; both are None where it has none. `inline_bytes` are those of the
    longest body that is not put into a bucket.
    """

    url: str
    fifo: bool
    inline_bytes: int
    max_receives: int | None = None
    dead_letters: str | None = None


async def facts(calls: Calls, queue_url: str) -> QueueFacts:
    """Ask a queue for its attributes. Raises QueueRefused, StoreUnavailable."""
    answer = await calls.ask(
        "get_queue_attributes",
        queue_url,
        QueueUrl=queue_url,
        AttributeNames=["MaximumMessageSize", "RedrivePolicy"],
    )
    attributes = answer.get("Attributes", {})
    fifo = queue_url.endswith(".fifo")
    inline_bytes = min(INLINE_BYTES, int(attributes.get("MaximumMessageSize", INLINE_BYTES)))
    if "RedrivePolicy" not in attributes:
        return QueueFacts(queue_url, fifo, inline_bytes)
    policy = orjson.loads(attributes["RedrivePolicy"])
    return QueueFacts(
        queue_url,
        fifo,
        inline_bytes,
        int(policy["maxReceiveCount"]),
        policy["deadLetterTargetArn"],
    )


async def url_of(calls: Calls, arn: str) -> str:
    """Return the URL of a queue. Raises QueueRefused, StoreUnavailable."""
    account, name = arn.split(":")[-2:]
    found = await calls.ask("get_queue_url", arn, QueueName=name, QueueOwnerAWSAccountId=account)
    return str(found["QueueUrl"])


async def counts(calls: Calls, queue_url: str) -> tuple[int, int]:
    """Return about how many messages wait and how many are leased.

    Raises QueueRefused, StoreUnavailable.
    """
    answer = await calls.ask(
        "get_queue_attributes",
        queue_url,
        QueueUrl=queue_url,
        AttributeNames=[*_WAITING, _LEASED],
    )
    of = answer["Attributes"]
    return sum(int(of[name]) for name in _WAITING), int(of[_LEASED])

"""Listing of the messages of a dead-letter queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.sqs.calls import MAX_ENTRIES, SqsCaller
from jobs.sqs.message import RECEIVE_ATTRIBUTES

_MAX_MESSAGES = 1_000
# Messages are invisible to other receivers for so long, or until all have been listed.
_VISIBILITY_TIMEOUT_S = 30


async def list_dead_messages(calls: SqsCaller, queue_url: str) -> list[Mapping[str, Any]]:
    """Return the messages of a queue that are not leased, and leave them in the queue.

    Raises QueueRefused, StoreUnavailable.
    """
    by_id: dict[str, Mapping[str, Any]] = {}
    while len(by_id) < _MAX_MESSAGES:
        answer = await calls.call(
            "receive_message",
            queue_url,
            QueueUrl=queue_url,
            MaxNumberOfMessages=MAX_ENTRIES,
            VisibilityTimeout=_VISIBILITY_TIMEOUT_S,
            WaitTimeSeconds=1,
            **RECEIVE_ATTRIBUTES,
        )
        new = {each["MessageId"]: each for each in answer.get("Messages", ())}
        if not new.keys() - by_id.keys():
            break
        by_id |= new
    messages = [*by_id.values()]
    for start in range(0, len(messages), MAX_ENTRIES):
        entries = [
            {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
            for number, each in enumerate(messages[start : start + MAX_ENTRIES])
        ]
        await calls.call(
            "change_message_visibility_batch", queue_url, QueueUrl=queue_url, Entries=entries
        )
    return messages

"""A look into a dead-letter queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.sqs.calls import MAX_ENTRIES, Calls
from jobs.sqs.message import ASKED

_MOST = 1_000
# Nobody else sees them for so long, and they are given back when all have been seen.
_LOOK_S = 30


async def dead_messages(calls: Calls, queue_url: str) -> list[Mapping[str, Any]]:
    """Return the messages of a queue that nobody else looks at, and leave them there.

    Raises QueueRefused, StoreUnavailable.
    """
    found: dict[str, Mapping[str, Any]] = {}
    while len(found) < _MOST:
        answer = await calls.ask(
            "receive_message",
            queue_url,
            QueueUrl=queue_url,
            MaxNumberOfMessages=MAX_ENTRIES,
            VisibilityTimeout=_LOOK_S,
            WaitTimeSeconds=1,
            **ASKED,
        )
        new = {each["MessageId"]: each for each in answer.get("Messages", ())}
        if not new.keys() - found.keys():
            break
        found |= new
    messages = [*found.values()]
    for at in range(0, len(messages), MAX_ENTRIES):
        entries = [
            {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
            for number, each in enumerate(messages[at : at + MAX_ENTRIES])
        ]
        await calls.ask(
            "change_message_visibility_batch", queue_url, QueueUrl=queue_url, Entries=entries
        )
    return messages

"""The answers to a queue's messages, in the bucket beside it."""

from __future__ import annotations

import orjson

from batch.queue.message import failure_line, parse_message
from batch.queue.result_bucket import ObjectTooLarge, ResultBucket
from jobs import Job

# The error codes of lines that no engine has seen the end of.
NOT_ANSWERED, BAD_LINE, BAD_ANSWER = "not_answered", "bad_line", "bad_answer"


class BucketResultStore:
    """Keeps each answer once, whoever comes with another; holds nothing itself.

    Its calls block, may be made from several threads, and raise StoreUnavailable and QueueRefused.
    """

    def __init__(self, place: ResultBucket, model: str) -> None:
        self._place = place
        self._model = model

    def find(self, key: str) -> bytes | None:
        """Return the line that a message was answered with, or None.

        An object that is too long for an answer counts as one that failed: it stays, since the
        first one does, and no worker reads it again and again.
        """
        try:
            return self._place.find(key)
        except ObjectTooLarge as error:
            told = {"custom_id": None, "response": None, "error": {"message": str(error)}}
            return orjson.dumps(told)

    def keep(self, ended: Job) -> None:
        """Keep the end of a message's job, unless it has one."""
        message = parse_message(ended.input, self._model)
        line = ended.output
        if line is None:
            line = failure_line(message, NOT_ANSWERED, ended.error or "")
        self._place.put_if_absent(message.key, line)

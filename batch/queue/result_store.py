"""Stores the answers to a queue's messages in the result bucket."""

from __future__ import annotations

import orjson

from batch.queue.message import failure_line, parse_message
from batch.queue.result_bucket import ObjectTooLarge, ResultBucket
from jobs import Job

# The error codes of lines without an answer of an engine.
NOT_ANSWERED, BAD_LINE, BAD_ANSWER = "not_answered", "bad_line", "bad_answer"


class BucketResultStore:
    """Stores the first answer to each message. It has no state of its own.

    Its calls block, may be made from several threads, and raise StoreUnavailable and QueueRefused.
    """

    def __init__(self, bucket: ResultBucket, model: str) -> None:
        self._bucket = bucket
        self._model = model

    def find(self, key: str) -> bytes | None:
        """Return the stored answer to a message, or None.

        An object that is too long for an answer counts as a failed answer. The first object of a
        key is never replaced, so otherwise workers would read it again for each delivery.
        """
        try:
            return self._bucket.find(key)
        except ObjectTooLarge as error:
            failure = {"custom_id": None, "response": None, "error": {"message": str(error)}}
            return orjson.dumps(failure)

    def keep(self, finished_job: Job) -> None:
        """Store the output or the error of a message's job, unless its key exists."""
        message = parse_message(finished_job.input, self._model)
        line = finished_job.output
        if line is None:
            line = failure_line(message, NOT_ANSWERED, finished_job.error or "")
        self._bucket.put_if_absent(message.key, line)

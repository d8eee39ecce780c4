"""The answers to a queue's messages, in the bucket beside it."""

from __future__ import annotations

from batch.message import failure_line, read_message
from batch.place import Place
from jobs import Job

# The error codes of lines that no engine has seen the end of.
NOT_ANSWERED, BAD_LINE = "not_answered", "bad_line"


class Results:
    """Keeps each answer once, whoever comes with another; holds nothing itself.

    Its calls block, may be made from several threads, and raise StoreUnavailable and QueueRefused.
    """

    def __init__(self, place: Place, model: str) -> None:
        self._place = place
        self._model = model

    def find(self, key: str) -> bytes | None:
        """Return the line that a message was answered with, or None."""
        return self._place.find(key)

    def keep(self, ended: Job) -> None:
        """Keep the end of a message's job, unless it has one."""
        message = read_message(ended.input, self._model)
        line = ended.output
        if line is None:
            line = failure_line(message, NOT_ANSWERED, ended.error or "")
        self._place.put_first(message.key, line)

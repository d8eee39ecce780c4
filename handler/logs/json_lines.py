"""Collect the fields of log records, and format records as one JSON object per line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import orjson
from structlog.contextvars import get_contextvars
from structlog.tracebacks import ExceptionDictTransformer

from common.terminal_text import escape_json

# The names in `extra` that are logged. Other names are not, because libraries put requests and
# credentials there.
_EXTRA = ("job_id", "batch_id", "generation_id", "prompt", "answer")
# The name in `extra` of a mapping with more fields; faster than separate names for several fields.
FIELDS = "log_fields"

# Without the local variables of the frames, which may contain keys and prompts.
_describe_exception = ExceptionDictTransformer(show_locals=False)


def collect_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields bound to the current task, updated with the record's own fields.

    The record's own field takes precedence, because a job may end in the task of another job's
    request.
    """
    fields = get_contextvars()
    values = record.__dict__
    for name in _EXTRA:
        if name in values:
            fields[name] = values[name]
    own = values.get(FIELDS)
    if own is not None:
        fields.update(own)
    return fields


class JsonFormatter(logging.Formatter):
    """Writes `event`, `level`, `logger` and `timestamp`, the record's fields, and a traceback.

    Uses only the standard library's records: structlog's processor chain took five times as long,
    and each job writes several lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON; a value that JSON does not have is written as its `repr`.

        The line has only printable characters, because logs are read on terminals.
        """
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(collect_fields(record))
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, error, frames = record.exc_info
            if error is not None:
                line["exception"] = _describe_exception((kind, error, frames))
        try:
            return escape_json(orjson.dumps(line, default=repr, option=orjson.OPT_UTC_Z).decode())
        except TypeError:
            # Half a surrogate pair, which UTF-8 cannot encode, or a key that is not a string.
            return escape_json(json.dumps(line, default=repr, skipkeys=True))

"""Format log records as short aligned lines for a terminal."""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Mapping
from typing import Any

import orjson

from common.terminal_text import escape_controls
from handler.logs.json_lines import collect_fields

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_RED, _GREEN, _YELLOW, _CYAN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"

_LEVEL_COLOURS = {"WARNING": _YELLOW, "ERROR": _RED + _BOLD, "CRITICAL": _RED + _BOLD}
_STATE_COLOURS = {"COMPLETED": _GREEN, "FAILED": _RED, "TIMED_OUT": _RED, "CANCELLED": _YELLOW}
# The width of the text column, so that the fields of job lines and of request lines align. A job id
# has 39 characters, or 44 with `/runsync`.
_JOB_WIDTH, _REQUEST_WIDTH = 58, 32
# The indentation of the rows of a block and of a traceback: the width of the time column.
_INDENT = " " * 10
# Fields that the text contains already, or that are not useful at a terminal.
_OMITTED_FIELDS = frozenset(("state", "status", "method", "path", "attempt", "load_ms", "restarts"))
_ID_FIELDS = ("job_id", "batch_id", "generation_id")


def should_use_colours(*, is_terminal: bool) -> bool:
    """Return whether to colour output: on a terminal without NO_COLOR and TERM=dumb."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def format_duration(milliseconds: float) -> str:
    """Format a duration, such as `3 ms` or `1.20 s`."""
    if milliseconds < 10 and isinstance(milliseconds, float):
        return f"{milliseconds:.1f} ms"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s"


class ConsoleFormatter(logging.Formatter):
    """Formats a record as the time of day, the level unless it is INFO, the text and its fields.

    Each record is one line, with two exceptions: a traceback follows below, and a field whose value
    is a mapping (at the start of the server) follows as a block with one row per item. Of lines
    about one job in a row, only the first has its id.
    """

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours
        # Of the line before: an id is not repeated in the lines that follow.
        self._last_job_id: object = None

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text for a terminal."""
        fields = collect_fields(record)
        text = escape_controls(record.getMessage())
        job_id = fields.get("job_id")
        parts, rows = self._format_details(record, text, fields)
        self._last_job_id = job_id
        if parts:
            width = 0
            if "state" in fields:
                width = _JOB_WIDTH
            elif "status" in fields:
                width = _REQUEST_WIDTH
            tail = "  ".join(parts)
            padding = " " * max(2, width + 2 - len(text))
        else:
            tail = padding = ""
        line = f"{self._dim(_format_time(record.created))}  {self._format_level(record)}"
        line += self._format_text(text, fields) + padding + tail
        if rows:
            line += "\n" + "\n".join(rows)
        if record.exc_info is not None and record.exc_info[0] is not None:
            line += "\n" + _format_traceback(record.exc_info)
        return line

    def _format_details(
        self, record: logging.LogRecord, text: str, fields: dict[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Return the fields that follow the text on its line, and the rows below the line."""
        parts: list[str] = []
        rows: list[str] = []
        worker = fields.pop("worker", None)
        for name, value in fields.items():
            if name in _OMITTED_FIELDS or value is None:
                continue
            if isinstance(value, Mapping):
                rows += self._format_block(value)
            elif name == "endpoint":
                parts.append(escape_controls(f"{value}/{worker}" if worker else str(value)))
            elif name == "error":
                parts.append(self._colour(_RED, escape_controls(str(value))))
            elif name == "request_id":
                # Needed only to find a request that failed.
                if record.levelno > logging.INFO:
                    parts.append(self._dim(f"request {escape_controls(str(value))}"))
            elif name in _ID_FIELDS:
                is_repeated = name == "job_id" and value == self._last_job_id
                if str(value) not in text and not is_repeated:
                    parts.append(self._dim(f"{name[:-3]} {escape_controls(str(value))}"))
            else:
                parts.append(_format_field(name, value))
        return parts, rows

    def _format_block(self, rows: Mapping[str, Any]) -> list[str]:
        texts = {
            name: _format_value(value) for name, value in rows.items() if value not in (None, {})
        }
        width = max(map(len, texts), default=0) + 2
        return [
            _INDENT
            + self._colour(_CYAN, escape_controls(name.ljust(width)))
            + escape_controls(value)
            for name, value in texts.items()
        ]

    def _format_text(self, text: str, fields: Mapping[str, Any]) -> str:
        colour = _STATE_COLOURS.get(fields.get("state", ""))
        status = fields.get("status")
        if isinstance(status, int):
            colour = _RED if status >= 500 else _YELLOW if status >= 400 else None
        return text if colour is None else self._colour(colour, text)

    def _format_level(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.INFO:
            return ""
        name = record.levelname
        return self._colour(_LEVEL_COLOURS.get(name, _DIM), name) + "  "

    def _dim(self, text: str) -> str:
        return self._colour(_DIM, text)

    def _colour(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours else text


def _format_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _format_field(name: str, value: Any) -> str:
    """Format a field for a terminal."""
    match name:
        case "queue_ms":
            return f"waited {format_duration(value)}"
        case "run_ms":
            return f"ran {format_duration(value)}"
        case "duration_ms":
            return format_duration(value)
        case "tokens":
            return f"{value:,} token{'' if value == 1 else 's'}"
    return f"{name}={escape_controls(_format_value(value))}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "  ".join(f"{name}={_format_value(each)}" for name, each in value.items())
    return orjson.dumps(value, default=repr).decode()


def _format_traceback(exc_info: Any) -> str:
    lines = "".join(traceback.format_exception(*exc_info)).splitlines()
    return "\n".join(_INDENT + escape_controls(line) for line in lines)

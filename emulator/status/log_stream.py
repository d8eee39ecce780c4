"""Follow the log of one worker as server-sent events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson
from starlette.requests import Request

from common.digits import parse_digits
from common.value_description import describe_value
from emulator.autoscaling.worker_log import MAX_LINES, LogLine, Source, WorkerLog
from emulator.http.sse import COMMENTS_AFTER_S, SSEResponse
from emulator.status.rfc3339 import format_time, parse_time
from handler.apis.core.wire_format import escape_line_separators
from handler.errors import InvalidRequest

_DEFAULT_TAIL = 100
# The lines of one block, which is sent whole.
_LINES_PER_BLOCK = 500
_EVENT_ID = re.compile(r"\S+/(\d{1,12})", re.ASCII)
_SOURCES: dict[str, tuple[Source, ...]] = {
    "container": ("container",),
    "system": ("system",),
    "both": ("container", "system"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines a reader asks for: the `tail`, those `since` a time, or those after a number."""

    sources: tuple[Source, ...] = ("container", "system")
    tail: int = _DEFAULT_TAIL
    since: float | None = None
    after: int | None = None

    def number_before_first(self, log: WorkerLog) -> int:
        """Return the number of the line before the first one that the reader gets."""
        if self.after is not None:
            return min(self.after, log.last_number)
        if self.since is not None:
            return log.number_before(self.since)
        return log.number_before_tail(self.tail, self.sources)


def read_log_query(request: Request) -> LogQuery:
    """Return the query of a request. Raises InvalidRequest."""
    query = request.query_params
    source, tail, since = query.get("source", "both"), query.get("tail"), query.get("since")
    if source not in _SOURCES:
        raise InvalidRequest(
            f"source must be container, system or both, got {describe_value(source)}", "source"
        )
    count = _DEFAULT_TAIL if tail is None else _parse_count(tail)
    if not 0 <= count <= MAX_LINES:
        raise InvalidRequest(
            f"tail must be a whole number from 0 to {MAX_LINES}, got {describe_value(tail)}", "tail"
        )
    last_event_id = request.headers.get("last-event-id")
    return LogQuery(
        sources=_SOURCES[source],
        tail=count,
        since=None if since is None else _parse_since(since),
        after=None if not last_event_id else _parse_event_id(last_event_id),
    )


def _parse_count(raw: str) -> int:
    count = parse_digits(raw, max_digits=9)
    return -1 if count is None else count


def _parse_since(raw: str) -> float:
    try:
        # In a query, `+` stands for a space unless it is escaped.
        return parse_time(raw.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise InvalidRequest(
            "since must be a time of RFC 3339 with its offset, such as 2026-11-27T09:30:00Z, "
            f"got {describe_value(raw)}",
            "since",
        ) from None


def _parse_event_id(raw: str) -> int:
    match = _EVENT_ID.fullmatch(raw)
    if match is None:
        raise InvalidRequest(
            f"Last-Event-ID must be the id of an event of this log, got {describe_value(raw)}",
            "Last-Event-ID",
        )
    return int(match[1])


class WorkerLogStream:
    """Sends each line of a worker to one reader, until the worker has ended.

    Owned by the task that answers the request. If the log drops lines before a slow reader gets
    them, an event from `system` has their number.
    """

    def __init__(self, log: WorkerLog, query: LogQuery) -> None:
        self._log = log
        self._sources = query.sources
        self._last_number = query.number_before_first(log)

    def response(self) -> SSEResponse:
        """Return the response to the reader."""
        return SSEResponse(self.events(), lambda: None, comments_after_s=COMMENTS_AFTER_S)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield blocks of whole events; each event's id is the time and the number of its line."""
        while True:
            lines = self._log.lines_after(self._last_number, _LINES_PER_BLOCK)
            if not lines:
                if self._log.is_closed:
                    return
                await self._log.wait_for_line(self._last_number)
                continue
            events = []
            if missed := lines[0].number - self._last_number - 1:
                events.append(_event(_gap_line(lines[0], missed)))
            events += [_event(line) for line in lines if line.source in self._sources]
            self._last_number = lines[-1].number
            if events:
                yield b"".join(events)


def _gap_line(next_line: LogLine, missed: int) -> LogLine:
    text = f"{missed:,} lines were dropped: the log keeps the newest {MAX_LINES:,}"
    return LogLine(next_line.number - 1, next_line.at, "system", text)


def _event(line: LogLine) -> bytes:
    moment = format_time(line.at)
    fields = {"ts": moment, "source": line.source, "line": line.text}
    if line.job_id is not None:
        fields["jobId"] = line.job_id
    data = orjson.dumps(fields)
    return b"id: %b/%012d\ndata: %b\n\n" % (
        moment.encode(),
        line.number,
        escape_line_separators(data),
    )

"""The faults that a request can ask for, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# The longest pause of one fault, in seconds.
MAX_PAUSE_S = 300.0
_MAX_COUNT = 1_000_000
# The most comments or pings before one event.
MAX_REPEATS = 1_000
_REPEATED = frozenset({"comments", "pings"})


class ValueKind(Enum):
    """The kind of value that a fault takes."""

    NONE = "none"
    COUNT = "a whole number"
    SECONDS = "a number of seconds"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault, its effect on the client and the range of its value.

    `default` is used if the request gives no value; None if a value is required, of which `example`
    is one. `only_events`: the fault has no meaning in a stream of lines of JSON.
    """

    name: str
    meaning: str
    value_kind: ValueKind = ValueKind.NONE
    minimum: float = 0
    maximum: float = 0
    default: float | None = None
    example: float = 1
    only_events: bool = False

    def usage(self) -> str:
        """Return how the fault is written."""
        if self.value_kind is ValueKind.NONE:
            return self.name
        value = "SECONDS" if self.value_kind is ValueKind.SECONDS else "N"
        return f"{self.name}={value}" if self.default is None else f"{self.name}[={value}]"

    def example_usage(self) -> str:
        """Return the fault with its default or an example of its value."""
        if self.value_kind is ValueKind.NONE:
            return self.name
        return f"{self.name}={self.example if self.default is None else self.default:g}"


def _count(name: str, meaning: str, minimum: int = 1, *, only_events: bool = False) -> FaultKind:
    maximum = MAX_REPEATS if name in _REPEATED else _MAX_COUNT
    return FaultKind(name, meaning, ValueKind.COUNT, minimum, maximum, 1, only_events=only_events)


def _pause(name: str, meaning: str, maximum: float = MAX_PAUSE_S) -> FaultKind:
    return FaultKind(name, meaning, ValueKind.SECONDS, 0, maximum)


def _events_only(name: str, meaning: str) -> FaultKind:
    return FaultKind(name, meaning, only_events=True)


# Responses that the server sends instead of processing the request.
REPLACEMENTS = (
    FaultKind(
        "status",
        "The response is an error with this status, from 400 to 599.",
        ValueKind.COUNT,
        400,
        599,
        example=503,
    ),
    FaultKind("html-502", "The response is the HTML page of a proxy with status 502."),
    FaultKind("html-200", "The response is an HTML page with status 200, as of a login page."),
    FaultKind("error-200", "The response is JSON with `error` and status 200."),
    FaultKind("job-queued", "The response is that of a job that is `IN_QUEUE`."),
    FaultKind(
        "job-running", "The response is that of a job that is `IN_PROGRESS`, without output."
    ),
    FaultKind("job-failed", "The response is that of a job that has `FAILED`, with `error`."),
    FaultKind("job-cancelled", "The response is that of a job that was `CANCELLED`."),
    FaultKind("job-timed-out", "The response is that of a job that has `TIMED_OUT`."),
    FaultKind("reset", "The connection is reset (TCP RST) before any response."),
    FaultKind("close", "The connection is closed (TCP FIN) before any response."),
)
RESPONSE_FAULTS = (
    FaultKind(
        "retry-after",
        "The header `Retry-After` of `status` or `html-502`, in seconds.",
        ValueKind.COUNT,
        0,
        86_400,
        example=2,
    ),
    _pause("delay", "The response starts this many seconds later, at most 300."),
    FaultKind("wrong-content-type", "The `Content-Type` is `text/html`."),
    FaultKind("no-content-type", "There is no `Content-Type`."),
    FaultKind(
        "false-gzip", "`Content-Encoding: gzip` is declared, and the body is not compressed."
    ),
    FaultKind(
        "gzip", "The body is compressed by gzip, event by event, if the client accepts that."
    ),
    FaultKind(
        "content-length",
        "The response declares a `Content-Length` of N, whatever its length, and then closes the "
        "connection.",
        ValueKind.COUNT,
        0,
        _MAX_COUNT,
        example=300,
    ),
    FaultKind(
        "until-close", "The body has neither a length nor chunks: the connection's end ends it."
    ),
    FaultKind("early-hints", "A response with status 103 precedes the response."),
    FaultKind("empty-body", "The response has its status and headers, and an empty body."),
)
JSON_FAULTS = (
    FaultKind("invalid-json", "The body is the Python `repr` of an object instead of JSON."),
    FaultKind("truncated-json", "The body is half as long; `Content-Length` matches it."),
    FaultKind(
        "truncated-body", "The connection is cut after half of the declared `Content-Length`."
    ),
    FaultKind("json-bom", "A byte order mark precedes the body."),
    FaultKind("first-chunk", "A job's `stream` has its first chunk only, and it is `IN_PROGRESS`."),
    FaultKind("job-unfinished", "A job is `IN_PROGRESS`, although all its output is there."),
    FaultKind("unknown-status", "The status of a job is `RESTARTING`, which is none of RunPod's."),
    FaultKind("no-stream", "The member `stream` of a job is missing."),
)
STREAM_FAULTS = (
    _count("drop-after", "The connection is cut after N events.", minimum=0),
    _count("cut-inside", "The connection is cut in the middle of event N."),
    _count("reset-after", "The connection is reset (TCP RST) after N events.", minimum=0),
    _count(
        "half-close-after",
        "After N events, the server closes its direction of the connection only.",
        minimum=0,
    ),
    _count("end-after", "The response ends after N events, without `[DONE]`.", minimum=0),
    _count("end-inside", "The response ends in the middle of event N."),
    _count("bad-chunk", "After N events, the size of an HTTP chunk is no number.", minimum=0),
    _count("long-chunk", "After N events, an HTTP chunk is shorter than its size says.", minimum=0),
    _count("error-event", "After N events, an error event and `[DONE]` end the stream.", minimum=0),
    _count("bare-error", "After N events, an error that is not JSON ends the stream.", minimum=0),
    _count(
        "message-error",
        "After N events, an error without the member `error` ends the stream.",
        minimum=0,
    ),
    _pause("stall", "Nothing is sent for this many seconds after the first event, at most 300."),
    _pause("slow", "Each event is sent this many seconds later, at most 10.", maximum=10),
    FaultKind("buffer", "All events are sent at once, at the end, as by a proxy that buffers."),
    _count("malformed-event", "The JSON of event N is cut off."),
    _count("empty-data", "An event with empty `data` precedes event N."),
    _count(
        "no-data", "A block with `event` and without `data` precedes event N.", only_events=True
    ),
    _count("unknown-event", "An event of an unknown type precedes event N.", only_events=True),
    _count("pings", "N events of the type `ping` precede each event.", only_events=True),
    _count("skip-event", "Event N is missing."),
    _count("repeat-event", "Event N is sent twice."),
    _count("swap-events", "Event N follows the event after it."),
    _events_only("empty-choices", "A chunk with `choices: []` precedes the first event."),
    _events_only("null-content", "A chunk with `content: null` precedes the first event."),
    _events_only("usage-first", "A chunk with `usage` and no choice precedes the first event."),
    _events_only("usage-each", "A chunk with `usage` and no choice follows each event."),
    FaultKind("no-usage", "The member `usage` is missing."),
    FaultKind("no-text", "The events with text are missing."),
    FaultKind("no-finish", "The events that say why the answer has ended are missing."),
    FaultKind("double-finish", "The events that say why the answer has ended are sent twice."),
    FaultKind("text-with-finish", "The last text and the reason of the end are one event."),
    FaultKind("text-after-finish", "The last event with text follows the reason of the end."),
    _events_only("no-message-stop", "The event `message_stop` is missing."),
    _events_only("no-done", "`[DONE]` is missing."),
    _events_only("done-twice", "`[DONE]` is sent twice."),
    _events_only("text-after-done", "The last event with text is sent again after `[DONE]`."),
    FaultKind("line-separators", "U+0085, U+2028 and U+2029, unescaped, follow the first text."),
    FaultKind("unescaped", "U+0085, U+2028 and U+2029 in the text are not escaped."),
    FaultKind("escaped", "All other characters than ASCII are escaped as in JSON."),
    FaultKind("unknown-members", "The JSON of each event has unknown members."),
    FaultKind(
        "large-event", "The first event with text has an unknown member of 300,000 characters."
    ),
    _events_only("comment", "A comment precedes each event."),
    _count("comments", "N comments precede each event.", only_events=True),
    _events_only("event-names", "Each event has the name `chunk`."),
    _events_only("id-and-retry", "Each event has the fields `id` and `retry`."),
    _events_only(
        "invalid-fields", "Each event has an `id` with NUL and a `retry` that is no number."
    ),
    _events_only("unknown-fields", "Each event has unknown fields, one of them without a colon."),
    FaultKind("blank-lines", "Two empty lines precede each event."),
    FaultKind("no-blank-line", "The end of the last line is missing."),
    _events_only(
        "multi-line-data", "The JSON of each event is indented, one `data` field per line."
    ),
    _events_only("no-space", "No space follows `data:`."),
    FaultKind("crlf", "Lines end with CR LF."),
    _events_only("cr", "Lines end with CR."),
    FaultKind("bom", "A byte order mark precedes the first event."),
    FaultKind(
        "split-character", "The bytes of each event's first non-ASCII character arrive apart."
    ),
    FaultKind("split-events", "The two halves of each event arrive apart."),
    FaultKind("split-lines", "The last byte of each line's end arrives apart."),
    FaultKind("split-bytes", "Each byte is sent in a write and an HTTP chunk of its own."),
)
# These concern the server's state, so that no single request can ask for them.
RULE_FAULTS = (
    FaultKind("rate-limits", "RunPod's rate limits per endpoint apply: above them, status 429."),
    FaultKind(
        "lose-lease",
        "The worker counts as lost right after it gets a job. Needs the operation `job-take` or "
        "`job-take-batch`.",
    ),
)
RULE_FAULT_NAMES = frozenset(kind.name for kind in RULE_FAULTS)
# The faults that have no meaning in a stream of lines, such as Ollama's.
EVENT_FAULT_NAMES = frozenset(kind.name for kind in STREAM_FAULTS if kind.only_events)
# By what a fault applies to. Replacements are sent instead of a response.
FAULT_GROUPS: Mapping[str, tuple[FaultKind, ...]] = {
    "replacement": REPLACEMENTS,
    "response": RESPONSE_FAULTS,
    "json": JSON_FAULTS,
    "stream": STREAM_FAULTS,
    "rule": RULE_FAULTS,
}
FAULT_KINDS: Mapping[str, FaultKind] = {
    kind.name: kind for kinds in FAULT_GROUPS.values() for kind in kinds
}
# Of each group, a request can have one fault.
EXCLUSIVE_GROUPS = (
    frozenset(kind.name for kind in (*REPLACEMENTS, *RULE_FAULTS)),
    frozenset({"empty-body", *(kind.name for kind in JSON_FAULTS)}),
    frozenset({"crlf", "cr"}),
    frozenset({"split-character", "split-events", "split-lines", "split-bytes"}),
    frozenset({"gzip", "false-gzip"}),
    frozenset({"content-length", "until-close"}),
    frozenset({"wrong-content-type", "no-content-type"}),
    frozenset({"unescaped", "escaped"}),
    frozenset({"text-with-finish", "text-after-finish"}),
)


def describe_faults() -> list[dict[str, str]]:
    """Return the faults that a request can ask for, for a form that offers them."""
    return [
        {
            "name": kind.name,
            "group": group,
            "example": kind.example_usage(),
            "meaning": kind.meaning,
        }
        for group, kinds in FAULT_GROUPS.items()
        for kind in kinds
        if kind.name not in RULE_FAULT_NAMES
    ]

"""The faults that a request can ask for, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# The longest pause of one fault, in seconds.
MAX_PAUSE_S = 300.0
_MAX_COUNT = 1_000_000


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


def _count(name: str, meaning: str, minimum: int = 1) -> FaultKind:
    return FaultKind(name, meaning, ValueKind.COUNT, minimum, _MAX_COUNT, 1)


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
    FaultKind(
        "false-gzip", "`Content-Encoding: gzip` is declared, and the body is not compressed."
    ),
    FaultKind("empty-body", "The response has its status and headers, and an empty body."),
)
JSON_FAULTS = (
    FaultKind("invalid-json", "The body is the Python `repr` of an object instead of JSON."),
    FaultKind("truncated-json", "The body is half as long; `Content-Length` matches it."),
    FaultKind(
        "truncated-body", "The connection is cut after half of the declared `Content-Length`."
    ),
)
STREAM_FAULTS = (
    _count("drop-after", "The connection is cut after N events.", minimum=0),
    _count("cut-inside", "The connection is cut in the middle of event N."),
    _count("end-after", "The response ends after N events, without `[DONE]`.", minimum=0),
    _count("error-event", "After N events, an error event and `[DONE]` end the stream.", minimum=0),
    _pause("stall", "Nothing is sent for this many seconds after the first event, at most 300."),
    _pause("slow", "Each event is sent this many seconds later, at most 10.", maximum=10),
    FaultKind("buffer", "All events are sent at once, at the end, as by a proxy that buffers."),
    _count("malformed-event", "The JSON of event N is cut off."),
    _count("empty-data", "An event with empty `data` precedes event N."),
    _count("skip-event", "Event N is missing."),
    _count("repeat-event", "Event N is sent twice."),
    _events_only("empty-choices", "A chunk with `choices: []` precedes the first event."),
    FaultKind("no-finish", "The events that say why the answer has ended are missing."),
    FaultKind("double-finish", "The events that say why the answer has ended are sent twice."),
    _events_only("no-done", "`[DONE]` is missing."),
    _events_only("done-twice", "`[DONE]` is sent twice."),
    _events_only("text-after-done", "The last event with text is sent again after `[DONE]`."),
    FaultKind("line-separators", "U+0085, U+2028 and U+2029, unescaped, follow the first text."),
    _events_only("comment", "A comment precedes each event."),
    _events_only("event-names", "Each event has the name `chunk`."),
    _events_only("id-and-retry", "Each event has the fields `id` and `retry`."),
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
    frozenset({"split-character", "split-bytes"}),
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

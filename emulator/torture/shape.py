"""The shapes of streams, read from shapes.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("shapes.yaml")


class Api(StrEnum):
    """The API that a client uses, as its first request without a fault shows."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OLLAMA = "ollama"
    JOB_EVENTS = "job-events"
    POLLS = "polls"
    JOB = "job"
    JSON = "json"

    @property
    def description(self) -> str:
        """The API in words, for a heading."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Api.CHAT: "streams of chat completions",
    Api.COMPLETIONS: "streams of completions",
    Api.RESPONSES: "streams of the Responses API",
    Api.MESSAGES: "streams of Anthropic's Messages API",
    Api.OLLAMA: "streams of Ollama's API",
    Api.JOB_EVENTS: "a job's stream as server-sent events",
    Api.POLLS: "a RunPod job's output, polled at /stream",
    Api.JOB: "a RunPod job's result, from /runsync or /status",
    Api.JSON: "answers as one JSON, without a stream",
}
# The names that `apis` in the file may have besides those of the APIs.
_GROUPS: Mapping[str, tuple[Api, ...]] = {
    "typed": (Api.RESPONSES, Api.MESSAGES),
    "events": (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.JOB_EVENTS),
    "streams": (
        *(Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.JOB_EVENTS),
        Api.OLLAMA,
    ),
    "all": tuple(Api),
}
# The number of the first event with text in the stream of each API.
_FIRST_TEXT = {
    Api.CHAT: 2,
    Api.COMPLETIONS: 1,
    Api.RESPONSES: 5,
    Api.MESSAGES: 3,
    Api.OLLAMA: 1,
    Api.JOB_EVENTS: 1,
}
# The same in a stream with a tool call, whose first event has its name.
_FIRST_ARGUMENTS = {**_FIRST_TEXT, Api.CHAT: 3, Api.RESPONSES: 4}


class Expected(StrEnum):
    """The results of a run that are right."""

    ANSWER = "answer"
    FAILURE = "failure"
    EITHER = "either"

    @property
    def description(self) -> str:
        """The results in words, after "the client"."""
        return {
            Expected.ANSWER: "must print the whole answer",
            Expected.FAILURE: "must fail",
            Expected.EITHER: "must print the whole answer, or fail",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape of a stream, with its faults for an API.

    `faults` has one `x-fault` for each request of the client; further requests get the last one. An
    empty text is no fault. `has_text` is false if the shape takes the text out of the answer.
    """

    name: str
    faults: tuple[str, ...]
    expected: Expected
    reason: str
    rule: str
    has_text: bool = True


def list_shapes(api: Api, *, is_call: bool = False) -> list[Shape]:
    """Return the shapes for an API; `is_call`: the answer is a tool call."""
    return [
        _build_shape(entry, api, is_call=is_call)
        for entry in _read_entries()
        if api in _expand_groups(entry["apis"]) and not (is_call and entry.get("only_text"))
    ]


def list_all_shapes() -> list[tuple[str, str, str, Sequence[Api]]]:
    """Return each shape's name, reason and rule, and the APIs that it concerns."""
    return [
        (entry["name"], entry["reason"], entry["rule"], sorted(_expand_groups(entry["apis"])))
        for entry in _read_entries()
    ]


@cache
def _read_entries() -> list[dict[str, Any]]:
    # Imported only here: `--help` does without it.
    import yaml

    entries: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return entries


def _expand_groups(names: Sequence[str]) -> set[Api]:
    return {api for name in names for api in _GROUPS.get(name) or (Api(name),)}


def _build_shape(entry: Mapping[str, Any], api: Api, *, is_call: bool) -> Shape:
    faults = entry["faults"]
    texts = [faults] if isinstance(faults, str) else faults
    number = (_FIRST_ARGUMENTS if is_call else _FIRST_TEXT).get(api, 1)
    expected = Expected(entry["expected"])
    if api is Api.JOB_EVENTS and entry.get("resumed"):
        expected = Expected.EITHER
    return Shape(
        name=entry["name"],
        faults=tuple(each.format(text=number, before_text=number - 1) for each in texts),
        expected=expected,
        reason=entry["reason"],
        rule=entry["rule"],
        has_text=entry.get("text") != "none",
    )

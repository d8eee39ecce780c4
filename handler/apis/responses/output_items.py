"""The output items of a response, built from the parts of a reply as they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from handler.apis.responses.item_references import build_item_id

# An event without its sequence number: its type and its members.
Event = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class OutputItem:
    """An item that is being written; `texts` are the pieces of its text, arguments or input.

    With `has_summary`, reasoning has its text as a summary too.
    """

    kind: str
    index: int
    id: str
    name: str = ""
    call_id: str = ""
    has_summary: bool = False
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far; for a custom tool its input, without the JSON around it."""
        text = "".join(self.texts)
        return _custom_input(text) if self.kind == "custom_tool_call" else text

    def encode(self, status: str = "completed") -> dict[str, Any]:
        """Return the item as JSON; with `in_progress` it is still empty."""
        text = self.text if status != "in_progress" else ""
        item: dict[str, Any] = {"id": self.id, "type": self.kind, "status": status}
        match self.kind:
            case "reasoning":
                parts = [{"type": "reasoning_text", "text": text}] if text else []
                summary = [encode_summary(text)] if text and self.has_summary else []
                return item | {"summary": summary, "content": parts}
            case "message":
                parts = [encode_text(text)] if status != "in_progress" else []
                return item | {"role": "assistant", "content": parts}
            case "function_call":
                return item | {"call_id": self.call_id, "name": self.name, "arguments": text}
            case _:
                return item | {"call_id": self.call_id, "name": self.name, "input": text}


def encode_text(text: str) -> dict[str, Any]:
    """Return the content part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def encode_summary(text: str) -> dict[str, Any]:
    """Return the part of a reasoning item for clients that read only summaries."""
    return {"type": "summary_text", "text": text}


def _custom_input(arguments: str) -> str:
    """Return the text for a custom tool; arguments that are no complete JSON are returned whole."""
    try:
        value = json.loads(arguments)["input"]
    except (ValueError, KeyError, TypeError):
        return arguments
    return value if isinstance(value, str) else arguments


class OutputBuilder:
    """Turns the parts of a reply into output items, and yields the events of a stream on the way.

    An item ends when the next one begins. Ids are derived from that of the response, so that a
    response that is generated once more has the same. With `has_summary` the reasoning comes as a
    summary too. Owned by the task that answers the request.
    """

    def __init__(
        self, custom_names: frozenset[str], response_id: str, *, has_summary: bool = False
    ) -> None:
        self._has_summary = has_summary
        self.items: list[OutputItem] = []
        self._custom_names = custom_names
        self._response_id = response_id
        self._open: OutputItem | None = None

    def add(self, part: Part) -> Iterator[Event]:
        """Add a part; yield the events that report it."""
        match part:
            case ReasoningPart(text):
                yield from self._begin("reasoning", "rs")
                yield from self._add_text(text, "response.reasoning_text.delta", content_index=0)
                if (item := self._open) is not None and item.has_summary and text:
                    place = {"item_id": item.id, "output_index": item.index, "summary_index": 0}
                    yield "response.reasoning_summary_text.delta", place | {"delta": text}
            case TextPart(text):
                yield from self._begin("message", "msg")
                yield from self._add_text(
                    text, "response.output_text.delta", content_index=0, logprobs=[]
                )
            case CallStart(name):
                yield from self.close()
                is_custom = name in self._custom_names
                kind, prefix = ("custom_tool_call", "ctc") if is_custom else ("function_call", "fc")
                yield from self._begin(kind, prefix, name)
            case CallArguments(text) if (item := self._open) is not None:
                if item.kind == "custom_tool_call":
                    # Sent at the end: the input is inside a JSON string.
                    item.texts.append(text)
                else:
                    yield from self._add_text(text, "response.function_call_arguments.delta")

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the item that is open; yield its last events."""
        item, self._open = self._open, None
        if item is None:
            return
        place = {"item_id": item.id, "output_index": item.index}
        text = item.text
        match item.kind:
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                yield "response.reasoning_text.done", place | {"content_index": 0, "text": text}
                yield "response.content_part.done", place | {"content_index": 0, "part": part}
                if item.has_summary:
                    place |= {"summary_index": 0}
                    yield "response.reasoning_summary_text.done", place | {"text": text}
                    part = encode_summary(text)
                    yield "response.reasoning_summary_part.done", place | {"part": part}
            case "message":
                done = {"content_index": 0, "text": text, "logprobs": []}
                yield "response.output_text.done", place | done
                part = encode_text(text)
                yield "response.content_part.done", place | {"content_index": 0, "part": part}
            case "function_call":
                done = {"name": item.name, "arguments": text}
                yield "response.function_call_arguments.done", place | done
            case _:
                yield "response.custom_tool_call_input.delta", place | {"delta": text}
                yield "response.custom_tool_call_input.done", place | {"input": text}
        encoded = item.encode(status)
        yield "response.output_item.done", {"output_index": item.index, "item": encoded}

    def _begin(self, kind: str, prefix: str, name: str = "") -> Iterator[Event]:
        if self._open is not None and self._open.kind == kind:
            return
        yield from self.close()
        index = len(self.items)
        item_id = build_item_id(prefix, self._response_id, index)
        call_id = f"call_{item_id.partition('_')[2]}" if name else ""
        has_summary = self._has_summary and kind == "reasoning"
        item = OutputItem(kind, index, item_id, name, call_id, has_summary)
        self.items.append(item)
        self._open = item
        added = {"output_index": item.index, "item": item.encode("in_progress")}
        yield "response.output_item.added", added
        if kind in ("reasoning", "message"):
            is_message = kind == "message"
            part = encode_text("") if is_message else {"type": "reasoning_text", "text": ""}
            place = {"item_id": item.id, "output_index": item.index, "content_index": 0}
            yield "response.content_part.added", place | {"part": part}
        if has_summary:
            place = {"item_id": item.id, "output_index": item.index, "summary_index": 0}
            yield "response.reasoning_summary_part.added", place | {"part": encode_summary("")}

    def _add_text(self, text: str, event: str, **members: Any) -> Iterator[Event]:
        item = self._open
        if item is not None and text:
            item.texts.append(text)
            place = {"item_id": item.id, "output_index": item.index}
            yield event, place | members | {"delta": text}

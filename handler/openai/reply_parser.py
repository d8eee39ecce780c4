"""Split an assistant's text into reasoning, content and tool calls (R39)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engine.reasoning import THINK_CLOSE, THINK_OPEN
from handler.openai.tools import Tools

# Markers of tool calls: a pair of tags (Hermes, Qwen), or a prefix (Mistral).
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_CALLS_PREFIX = "[TOOL_CALLS]"

# A call without its end, as a limit of tokens leaves it. A finished one is read as JSON.
_CUT_CALL = re.compile(
    r'\s*\[?\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?P<arguments>\{.*)',
    re.DOTALL,
)

MessageDelta = dict[str, Any]


class ReplyParser:
    """Parses a text incrementally; the result does not depend on how the text was split.

    Text that may be the start of a marker is held back until it is clear whether it is one. A tool
    call is returned when it is complete, or with partial arguments if a limit has cut the text
    there. `starts_in_reasoning` means that the chat template has opened the reasoning already. Not
    thread-safe.
    """

    def __init__(self, tools: Tools, *, starts_in_reasoning: bool = False) -> None:
        self._tools = tools
        self._tool_names = {tool["function"]["name"] for tool in tools.definitions}
        self._pending = ""
        self._in_reasoning = starts_in_reasoning
        # Whether there was only white space since the start, the reasoning or the last call.
        self._at_start = True
        # Whether a limit has ended the text.
        self._is_cut = False
        # What the current call started with: a marker, or "{" for bare JSON; "" outside of a call.
        self._call_marker = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str) -> list[MessageDelta]:
        """Parse more text; return the new parts of the message, as OpenAI's deltas."""
        self._pending += text
        return self._parse(final=False)

    def close(self, *, is_cut: bool = False) -> list[MessageDelta]:
        """Parse the text that was held back; return the last parts of the message.

        `is_cut` means that a limit has ended the text, so a call without an end is a partial call.
        """
        self._is_cut = is_cut
        return self._parse(final=True)

    def message(self) -> dict[str, Any]:
        """Return the complete message. Call it after `close`."""
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self.calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self.calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in self.calls
            ]
        return message

    def _parse(self, *, final: bool) -> list[MessageDelta]:
        deltas: list[MessageDelta] = []
        while (delta := self._parse_step(final=final)) is not None:
            if delta:
                deltas.append(delta)
        return deltas

    def _parse_step(self, *, final: bool) -> MessageDelta | None:
        """Return the next delta, empty if a step produced none; None if more text is needed."""
        if not self._pending:
            return None
        if self._in_reasoning:
            return self._parse_reasoning(final=final)
        if self._call_marker:
            return self._parse_call(final=final)
        if self._at_start:
            delta = self._parse_start(final=final)
            if delta is not None:
                return delta
            if self._at_start:
                return None
        return self._parse_content(final=final)

    def _parse_start(self, *, final: bool) -> MessageDelta | None:
        """Detect what the text starts with; clear `_at_start` once that is known."""
        text = self._pending.lstrip()
        if self._reasoning or self.calls:
            # White space after the reasoning or a call is not content.
            self._pending = text
        if not self._pending:
            return {}
        if not final and (not text or (THINK_OPEN.startswith(text) and text != THINK_OPEN)):
            return None
        if text.startswith(THINK_OPEN) and not self._reasoning:
            self._pending = text[len(THINK_OPEN) :]
            self._in_reasoning = True
            return {}
        if self._tool_names and text[:1] == "{":
            self._at_start = False
            self._call_marker = "{"
            return {}
        self._at_start = False
        return None

    def _parse_reasoning(self, *, final: bool) -> MessageDelta | None:
        if not self._reasoning:
            self._pending = self._pending.lstrip("\n")
        text, marker, rest = self._pending.partition(THINK_CLOSE)
        if marker:
            self._in_reasoning = False
            self._pending = rest
        else:
            text, self._pending = self._split_before_marker((THINK_CLOSE,), final=final)
            if not text:
                return None
        if not text:
            return {}
        self._reasoning.append(text)
        return {"reasoning_content": text}

    def _parse_content(self, *, final: bool) -> MessageDelta | None:
        markers = (_CALL_OPEN, _CALLS_PREFIX) if self._tool_names else ()
        position, marker = min(
            (
                (position, marker)
                for marker in markers
                if (position := self._pending.find(marker)) >= 0
            ),
            default=(-1, ""),
        )
        if position >= 0:
            text = self._pending[:position].rstrip()
            self._pending = self._pending[position + len(marker) :]
            self._call_marker = marker
        else:
            text, self._pending = self._split_before_marker(markers, final=final)
            if not text:
                return None
        if not text:
            return {}
        self._content.append(text)
        return {"content": text}

    def _parse_call(self, *, final: bool) -> MessageDelta | None:
        """Parse a call, which ends at its closing tag, or with the text if it has no such tag."""
        marker = self._call_marker
        text, end, rest = self._pending, "", ""
        if marker == _CALL_OPEN:
            text, end, rest = self._pending.partition(_CALL_CLOSE)
        if not end and not final:
            return None
        self._call_marker = ""
        self._pending = rest
        # Another call may follow.
        self._at_start = True
        calls = self._read_calls(text)
        if calls is None and self._is_cut and not end and (cut_call := self._read_cut_call(text)):
            return {"tool_calls": [self._add_call(*cut_call)]}
        if calls is None:
            # Not a call of a known function, so the text is content.
            content = text if marker == "{" else f"{marker}{text}{end}"
            self._content.append(content)
            return {"content": content}
        if not self._tools.parallel:
            calls = calls[: 1 - len(self.calls)]
        new_calls = [
            self._add_call(call["name"], orjson.dumps(call["arguments"]).decode()) for call in calls
        ]
        return {"tool_calls": new_calls} if new_calls else {}

    def _add_call(self, name: str, arguments: str) -> dict[str, Any]:
        tool_call = {
            "index": len(self.calls),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self.calls.append(tool_call)
        return tool_call

    def _read_calls(self, text: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the calls in a text; None if it is anything but calls of known functions."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        values = value if isinstance(value, list) else [value]
        calls = [_read_call(each) for each in values]
        known = [call for call in calls if call is not None and call["name"] in self._tool_names]
        return known if known and len(known) == len(calls) else None

    def _read_cut_call(self, text: str) -> tuple[str, str] | None:
        """Return the name and the partial arguments of a call that the end of the text cuts."""
        match = _CUT_CALL.match(text)
        if match is None or match["name"] not in self._tool_names:
            return None
        if self.calls and not self._tools.parallel:
            return None
        return match["name"], match["arguments"]

    def _split_before_marker(self, markers: tuple[str, ...], *, final: bool) -> tuple[str, str]:
        """Return the text that cannot be part of a marker, and the text to hold back."""
        text = self._pending
        if final:
            return text, ""
        held_back = 0
        for marker in markers:
            for length in range(min(len(marker) - 1, len(text)), 0, -1):
                if text.endswith(marker[:length]):
                    held_back = max(held_back, length)
                    break
        cut = len(text) - held_back
        if markers == (_CALL_OPEN, _CALLS_PREFIX):
            # White space before a call is not content.
            cut = len(text[:cut].rstrip())
        return text[:cut], text[cut:]


def _read_call(value: Any) -> Mapping[str, Any] | None:
    """Return a call's name and arguments from any of the forms that models write."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
    return {"name": value["name"], "arguments": arguments}

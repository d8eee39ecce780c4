"""An assistant's text taken apart: what it thought, what it says, what it calls (R39)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engine.reasoning import THINK_CLOSE, THINK_OPEN
from handler.openai.tools import Tools

# How models begin a call: Hermes' and Qwen's, and Mistral's.
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_CALLS = "[TOOL_CALLS]"

Delta = dict[str, Any]


class ReplyParser:
    """Reads a text piece by piece; the same text gives the same parts however it was cut.

    What may be the beginning of a mark is held back until it is clear. Functions are told of when a
    call is complete. `thinking` says that the template has opened the thoughts already. Owned by
    whoever answers the call.
    """

    def __init__(self, tools: Tools, *, thinking: bool = False) -> None:
        self._tools = tools
        self._names = {tool["function"]["name"] for tool in tools.told}
        self._held = ""
        self._thinking = thinking
        # Nothing but white space so far.
        self._fresh = True
        self._calling = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str) -> list[Delta]:
        """Take more text; return what is new of the message, as OpenAI's deltas."""
        self._held += text
        return self._read(last=False)

    def close(self) -> list[Delta]:
        """Return what was held back to the end."""
        return self._read(last=True)

    def message(self) -> dict[str, Any]:
        """Return the whole message; after `close`."""
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

    def _read(self, *, last: bool) -> list[Delta]:
        found: list[Delta] = []
        while (step := self._step(last=last)) is not None:
            if step:
                found.append(step)
        return found

    def _step(self, *, last: bool) -> Delta | None:
        """Take one step; None when more text is needed for the next one."""
        if not self._held:
            return None
        if self._thinking:
            return self._think(last=last)
        if self._calling:
            return self._call(last=last)
        if self._fresh:
            begun = self._begin(last=last)
            if begun is not None:
                return begun
            if self._fresh:
                return None
        return self._say(last=last)

    def _begin(self, *, last: bool) -> Delta | None:
        """See what the text begins with, once that is clear; `_fresh` is then over."""
        text = self._held.lstrip()
        if self._reasoning or self.calls:
            # It only stands between them and what comes now.
            self._held = text
        if not self._held:
            return {}
        if not last and (not text or (THINK_OPEN.startswith(text) and text != THINK_OPEN)):
            return None
        if text.startswith(THINK_OPEN) and not self._reasoning:
            self._held = text[len(THINK_OPEN) :]
            self._thinking = True
            return {}
        if self._names and text[:1] == "{":
            self._fresh = False
            self._calling = "{"
            return {}
        self._fresh = False
        return None

    def _think(self, *, last: bool) -> Delta | None:
        if not self._reasoning:
            self._held = self._held.lstrip("\n")
        text, mark, rest = self._held.partition(THINK_CLOSE)
        if mark:
            self._thinking = False
            self._held = rest
        else:
            text, self._held = self._clear_of((THINK_CLOSE,), last=last)
            if not text:
                return None
        if not text:
            return {}
        self._reasoning.append(text)
        return {"reasoning_content": text}

    def _say(self, *, last: bool) -> Delta | None:
        marks = (_CALL, _CALLS) if self._names else ()
        at, mark = min(
            ((at, mark) for mark in marks if (at := self._held.find(mark)) >= 0),
            default=(-1, ""),
        )
        if at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at + len(mark) :]
            self._calling = mark
        else:
            text, self._held = self._clear_of(marks, last=last)
            if not text:
                return None
        if not text:
            return {}
        self._content.append(text)
        return {"content": text}

    def _call(self, *, last: bool) -> Delta | None:
        """Read what stands between marks, or to the end where there is no second one."""
        mark = self._calling
        text, end, rest = self._held.partition(_CALLED) if mark == _CALL else (self._held, "", "")
        if not end and not last:
            return None
        self._calling = ""
        self._held = rest
        # Another one may follow.
        self._fresh = True
        calls = self._parsed(text)
        if calls is None:
            # Not a call after all, but what somebody says about one.
            said = text if mark == "{" else f"{mark}{text}{end}"
            self._content.append(said)
            return {"content": said}
        if not self._tools.parallel:
            calls = calls[: 1 - len(self.calls)]
        new = [self._made(call) for call in calls]
        return {"tool_calls": new} if new else {}

    def _made(self, call: Mapping[str, Any]) -> dict[str, Any]:
        made = {
            "index": len(self.calls),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": orjson.dumps(call["arguments"]).decode(),
            },
        }
        self.calls.append(made)
        return made

    def _parsed(self, text: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the calls that a text is; None where it is none."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        values = value if isinstance(value, list) else [value]
        calls = [_one_call(each) for each in values]
        known = [call for call in calls if call is not None and call["name"] in self._names]
        return known if known and len(known) == len(calls) else None

    def _clear_of(self, marks: tuple[str, ...], *, last: bool) -> tuple[str, str]:
        """Return the text that cannot be part of a mark, and the rest."""
        text = self._held
        if last:
            return text, ""
        longest = 0
        for mark in marks:
            for length in range(min(len(mark) - 1, len(text)), 0, -1):
                if text.endswith(mark[:length]):
                    longest = max(longest, length)
                    break
        cut = len(text) - longest
        if marks == (_CALL, _CALLS):
            # White space before a call is no part of what is said.
            cut = len(text[:cut].rstrip())
        return text[:cut], text[cut:]


def _one_call(value: Any) -> Mapping[str, Any] | None:
    """Return a call in any of the ways models write one: name, and arguments or parameters."""
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

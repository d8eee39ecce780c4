"""Writes the parts of a server's answer as the output of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from engine.errors import EngineCrashed
from engine.output import TokenLogprob
from engine.prompts.reasoning import THINK_CLOSE, THINK_OPEN

# A token: its bytes, which may be a part of a character, and its log-probability.
Token = tuple[bytes, TokenLogprob]
# Returns whether the engine has stopped the answer.
Emit = Callable[[bytes, TokenLogprob | None], bool]

_QUOTED_THINK_CLOSE = f"{THINK_CLOSE[0]} {THINK_CLOSE[1:]}"


@dataclass(slots=True)
class _OpenCall:
    """The call whose arguments are arriving in parts; an object of arguments may have none."""

    index: int
    id: str
    name: str
    parts: list[str] = field(default_factory=list)

    def is_continued_by(self, index: int, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a part of a call belongs to this one.

        Some servers give all calls the same index, and each an id of its own or none. Then another
        name begins another call, and so does an object after a whole one.
        """
        if index != self.index or name not in ("", self.name):
            return False
        if name and call_id not in ("", self.id):
            return False
        # The first two are cheap, and an object within one never has them.
        is_another = (
            arguments.lstrip().startswith("{")
            and any(self.parts)
            and self.parts[-1].rstrip().endswith("}")
            and not self.is_cut()
        )
        return not is_another

    def is_cut(self) -> bool:
        """Return whether the arguments end within a value."""
        arguments = "".join(self.parts).strip()
        try:
            json.loads(arguments)
        except json.JSONDecodeError as error:
            return error.msg.startswith("Unterminated") or error.pos >= len(arguments)
        except RecursionError:
            return False
        return False


class OutputWriter:
    """Passes reasoning, text and calls on as pieces, with the marks of models around them.

    Reasoning stands between `<think>` marks, and each call is JSON between `<tool_call>` marks, so
    the output is read like that of any other engine. `is_stopped` is whether the engine needs no
    more. `lost_logprobs` counts the tokens whose log-probabilities have no place in the text.
    Models reason before all else, so later reasoning is left out; `has_lost_reasoning` says so.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._is_reasoning = False
        self._call: _OpenCall | None = None
        self._surrogate = ""
        self._tokens: list[Token] = []
        self.is_stopped = False
        self.lost_logprobs = 0
        self.has_lost_reasoning = False
        self._has_other_output = False
        self._held_mark = ""

    def write_reasoning(self, text: str) -> None:
        """Write a part of the reasoning; a mark in it would end it, so it gets a space."""
        if self._has_other_output:
            self.has_lost_reasoning = True
            return
        if not self._is_reasoning:
            self._is_reasoning = True
            self._write(f"{THINK_OPEN}\n")
        text = (self._held_mark + text).replace(THINK_CLOSE, _QUOTED_THINK_CLOSE)
        held = _held_length(text, THINK_CLOSE)
        self._held_mark = text[len(text) - held :]
        self._write(text[: len(text) - held])

    def write_text(self, text: str, tokens: Sequence[Token] = ()) -> None:
        """Write a part of the text; `tokens` are its tokens if there are log-probabilities.

        A part of a character is no text yet, so its tokens wait for the next part.
        """
        if text:
            self._begin_other_output(is_blank=text.isspace())
        if not tokens and not self._tokens:
            self._write(text)
            return
        self._tokens += tokens
        if not text:
            return
        if b"".join(data for data, _ in self._tokens) == text.encode("utf-8", "surrogatepass"):
            for data, logprob in self._tokens:
                self._pass_on(data, logprob)
        else:
            self.lost_logprobs += len(self._tokens)
            self._write(text)
        self._tokens.clear()

    def write_call(self, index: int, call_id: str, name: str, arguments: str) -> None:
        """Write a part of a call, which begins with its name. Raises EngineCrashed without one."""
        call = self._call
        if call is None or not call.is_continued_by(index, call_id, name, arguments):
            # Only an object after a whole one has no name of its own.
            name = name or (call.name if call is not None and call.index == index else "")
            if not name:
                raise EngineCrashed("the server's answer has arguments of a call without a name")
            self._begin_other_output()
            call = self._call = _OpenCall(index, call_id, name)
            self._write(f'\n<tool_call>\n{{"name": {orjson.dumps(name).decode()}, "arguments": ')
        if arguments:
            call.parts.append(arguments)
            self._write(arguments)

    def close(self) -> None:
        """Write the marks that are missing at the end of the answer."""
        if self._surrogate:
            self._surrogate = ""
            self._write("\ufffd")
        self.lost_logprobs += len(self._tokens)
        self._close_reasoning()
        self._close_call(is_last=True)

    def _begin_other_output(self, *, is_blank: bool = False) -> None:
        """End what was before a text or a call; reasoning may follow white space at the start."""
        self._has_other_output |= self._is_reasoning or not is_blank
        self._close_reasoning()
        self._close_call()

    def _close_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning = False
            held, self._held_mark = self._held_mark, ""
            self._write(f"{held}{THINK_CLOSE}\n\n")

    def _close_call(self, *, is_last: bool = False) -> None:
        """Write the end of the call.

        Arguments that `max_tokens` has cut get no marks, which would become a part of them.
        """
        call, self._call = self._call, None
        if call is None:
            return
        is_empty = not "".join(call.parts).strip()
        if is_empty or not call.is_cut():
            self._write(f"{'{}' if is_empty else ''}}}\n</tool_call>")
        elif not is_last:
            raise EngineCrashed("the server's answer goes on after half a call")

    def _write(self, text: str) -> None:
        if data := self._encode(text):
            self._pass_on(data, None)

    def _pass_on(self, data: bytes, logprob: TokenLogprob | None) -> None:
        if not self.is_stopped:
            self.is_stopped = self._emit(data, logprob)

    def _encode(self, text: str) -> bytes:
        """Return a text in UTF-8; the first half of a surrogate pair waits for the second one."""
        text = self._surrogate + text
        self._surrogate = ""
        try:
            return text.encode()
        except UnicodeEncodeError:
            if "\ud800" <= text[-1] <= "\udbff":
                text, self._surrogate = text[:-1], text[-1]
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _held_length(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)

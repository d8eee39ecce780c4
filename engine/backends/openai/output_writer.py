"""Writes the parts of a server's answer as the output of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from engine.errors import EngineCrashed
from engine.output import TokenLogprob
from engine.prompts.reasoning import THINK_CLOSE, THINK_OPEN

# A token: its bytes, which may be a part of a character, and its log-probability.
Token = tuple[bytes, TokenLogprob]
# Returns whether the engine has stopped the answer.
Emit = Callable[[bytes, TokenLogprob | None], bool]


@dataclass(slots=True)
class _OpenCall:
    """The call whose arguments are arriving; an object of arguments may have none."""

    index: int
    id: str
    has_arguments: bool = False


class OutputWriter:
    """Passes reasoning, text and calls on as pieces, with the marks of models around them.

    Reasoning stands between `<think>` marks, and each call is JSON between `<tool_call>` marks, so
    the output is read like that of any other engine. `is_stopped` is whether the engine needs no
    more. `lost_logprobs` counts the tokens whose log-probabilities have no place in the text.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._is_reasoning = False
        self._call: _OpenCall | None = None
        self._surrogate = ""
        self._tokens: list[Token] = []
        self.is_stopped = False
        self.lost_logprobs = 0

    def write_reasoning(self, text: str) -> None:
        """Write a part of the reasoning."""
        if not self._is_reasoning:
            self._close_call()
            self._is_reasoning = True
            self._write(f"{THINK_OPEN}\n")
        self._write(text)

    def write_text(self, text: str, tokens: Sequence[Token] = ()) -> None:
        """Write a part of the text; `tokens` are its tokens if there are log-probabilities.

        A part of a character is no text yet, so its tokens wait for the next part.
        """
        if text:
            self._close_reasoning()
            self._close_call()
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
        """Write a part of a call, which begins with its name.

        Some servers give all calls the same index, and each an id of its own.
        """
        call = self._call
        if call is None or index != call.index or (call_id and call_id != call.id):
            if not name:
                raise EngineCrashed("the server's answer has arguments of a call without a name")
            self._close_reasoning()
            self._close_call()
            call = self._call = _OpenCall(index, call_id)
            self._write(f'\n<tool_call>\n{{"name": {orjson.dumps(name).decode()}, "arguments": ')
        if arguments:
            call.has_arguments = True
            self._write(arguments)

    def close(self) -> None:
        """Write the marks that are missing at the end of the answer."""
        if self._surrogate:
            self._surrogate = ""
            self._write("\ufffd")
        self.lost_logprobs += len(self._tokens)
        self._close_reasoning()
        self._close_call()

    def _close_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning = False
            self._write(f"{THINK_CLOSE}\n\n")

    def _close_call(self) -> None:
        if (call := self._call) is not None:
            self._call = None
            self._write(f"{'' if call.has_arguments else '{}'}}}\n</tool_call>")

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

"""The file format of the scripted backend: answers to give and faults to inject."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from engine.output import FinishReason


@dataclass(frozen=True, slots=True)
class ScriptedPiece:
    """One step of an answer: the bytes of a token, or a fault.

    In the file it is a string, or an object with one of `text`, `hex` (bytes, so that a character
    can be split), `error` (fail this run), `signal` (kill this process, e.g. SIGSEGV) and `hang_s`
    (pause; with `deaf`, an abort does not end the pause). `delay_ms` (a delay before the step) and
    `logprob` may be combined with any of them.
    """

    data: bytes = b""
    delay_ms: float = 0.0
    logprob: float = -1.0
    error: str | None = None
    signal: str | None = None
    hang_s: float = 0.0
    deaf: bool = False

    @classmethod
    def parse(cls, raw: Any) -> ScriptedPiece:
        """Parse one piece of the file. Raises TypeError or ValueError if it is invalid."""
        if isinstance(raw, str):
            return cls(raw.encode())
        fields = dict(raw)
        data = bytes.fromhex(fields.pop("hex", "")) or fields.pop("text", "").encode()
        return cls(data, **fields)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The answer to prompts that match the regular expression `when`; None matches all prompts.

    Without `pieces`, the answer repeats the words of the prompt. `repeat` is how often the
    pieces are generated, -1 for without end. `prefill_ms` is the delay before the first piece;
    with `deaf_prefill` an abort does not end that delay.
    """

    pieces: tuple[ScriptedPiece, ...] | None = None
    when: re.Pattern[str] | None = None
    repeat: int = 1
    delay_ms: float = 0.0
    prefill_ms: float = 0.0
    deaf_prefill: bool = False
    reason: FinishReason = FinishReason.STOP

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> ScriptedAnswer:
        """Parse one answer of the file. Raises TypeError or ValueError if it is invalid."""
        fields = dict(raw)
        if "pieces" in fields:
            fields["pieces"] = tuple(ScriptedPiece.parse(piece) for piece in fields["pieces"])
        if "when" in fields:
            fields["when"] = re.compile(fields["when"])
        if "reason" in fields:
            fields["reason"] = FinishReason(fields["reason"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Script:
    """A script file: answers in order of preference, and the capabilities that the engine reports.

    `load_error` makes the load fail with this message; `load_ms` delays the load; `load_signal`
    kills the process during the load.
    """

    answers: tuple[ScriptedAnswer, ...] = (ScriptedAnswer(),)
    slots: int = 4
    context_length: int = 4096
    load_ms: float = 0.0
    load_error: str | None = None
    load_signal: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Script:
        """Parse the JSON of a file. Raises TypeError or ValueError if it is invalid."""
        fields = dict(raw)
        if "answers" in fields:
            fields["answers"] = tuple(ScriptedAnswer.parse(answer) for answer in fields["answers"])
        return cls(**fields)

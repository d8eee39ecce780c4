"""What a script for the scripted backend may hold: answers, and faults to commit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from engine.output import FinishReason


@dataclass(frozen=True, slots=True)
class ScriptedPiece:
    """One step of an answer: bytes to say, or a fault to commit.

    In the file a string, or an object with one of `text`, `hex` (bytes, so that a character can be
    split), `error` (fail this run), `signal` (kill this process, e.g. SIGSEGV), `hang_s` (say
    nothing; with `deaf`, not even an abort is heard); `delay_ms` before it and `logprob` go with
    any of them.
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
        """Read one piece of the file. Raises TypeError or ValueError for what it cannot be."""
        if isinstance(raw, str):
            return cls(raw.encode())
        fields = dict(raw)
        data = bytes.fromhex(fields.pop("hex", "")) or fields.pop("text", "").encode()
        return cls(data, **fields)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What to say to prompts that match `when` (a regular expression; None matches all).

    `pieces` None says the prompt's own words back. `repeat` says the pieces that many times, -1
    for ever; `prefill_ms` is spent in silence first, in which `deaf_prefill` hears no abort.
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
        """Read one answer of the file. Raises TypeError or ValueError for what it cannot be."""
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
    """A whole file: answers in order of preference and what the engine claims to be.

    `load_error` fails the load; `load_ms` delays it.
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
        """Read a file's JSON. Raises TypeError or ValueError for what it cannot be."""
        fields = dict(raw)
        if "answers" in fields:
            fields["answers"] = tuple(ScriptedAnswer.parse(answer) for answer in fields["answers"])
        return cls(**fields)

"""The seam that the pipeline hands finished answers through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Verdict:
    """What validation makes of one answer.

    `text` is the answer after sanitising; `issues` are sentences for people, none exactly when
    `valid` (R47). An invalid answer is reported, never withheld.
    """

    text: str
    valid: bool
    issues: tuple[str, ...]
    intent: str


class Validator(Protocol):
    """Judges finished answers; called once a request, on the event loop, so it must be quick."""

    def validate(self, prompt: str, text: str, finish_reason: str) -> Verdict:
        """Return the verdict on `text` as an answer to `prompt`; never raises on any text."""

"""Validation with its verdicts counted."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from validation import Options, Subject, Validator, Verdict


class CountedValidator:
    """A validator that tells of each verdict, one at a time: long texts are judged on threads."""

    def __init__(self, validator: Validator, on_verdict: Callable[[Verdict], None]) -> None:
        self._validator = validator
        self._on_verdict = on_verdict
        self._telling = Lock()

    def refuse(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        """Return what the validator does."""
        verdict = self._validator.refuse(prompt, conversation, options)
        if verdict is not None:
            self._tell(verdict)
        return verdict

    def validate(self, subject: Subject, options: Options) -> Verdict:
        """Return what the validator does."""
        verdict = self._validator.validate(subject, options)
        self._tell(verdict)
        return verdict

    def _tell(self, verdict: Verdict) -> None:
        with self._telling:
            self._on_verdict(verdict)

"""A validator that reports its verdicts to the metrics."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from validation import Options, Subject, Validator, Verdict


class InstrumentedValidator:
    """Calls `on_verdict` with each verdict.

    Texts are validated on several threads; a lock makes sure that only one thread calls it.
    """

    def __init__(self, validator: Validator, on_verdict: Callable[[Verdict], None]) -> None:
        self._validator = validator
        self._on_verdict = on_verdict
        self._lock = Lock()

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        """Return the validator's refusal, and report it if there is one."""
        verdict = self._validator.check_request(prompt, conversation, options)
        if verdict is not None:
            self._report(verdict)
        return verdict

    def validate(self, subject: Subject, options: Options) -> Verdict:
        """Return the validator's verdict, and report it."""
        verdict = self._validator.validate(subject, options)
        self._report(verdict)
        return verdict

    def _report(self, verdict: Verdict) -> None:
        with self._lock:
            self._on_verdict(verdict)

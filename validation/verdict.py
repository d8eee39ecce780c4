"""The interface between pipeline and validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from validation.issues import Issue, Removal, Subject


class AnswerCheck(Protocol):
    """An optional check of answers, for example of the schema or the language."""

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return the issues of an answer, in linear time."""


class Redactor(Protocol):
    """Replaces personal data in texts."""

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        """Return the redacted text, and the removals in order."""


class Repairer(Protocol):
    """Repairs answers that are nearly what a schema asks for."""

    def repair(self, text: str) -> str | None:
        """Return the repaired text; None if it cannot be repaired. Any thread may call it."""


class Blocker(Protocol):
    """Decides which requests are not answered."""

    def find_block(self, text: str, intent: str) -> Issue | None:
        """Return the reason not to answer a request with this text and intent, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The optional parts of validation that a request and the settings enable.

    `call_check` is for each call. `repairer` may change an answer so that it passes the
    check `json_schema`. `regenerate` allows one more generation if the verdict has `retry`.
    """

    checks: Mapping[str, AnswerCheck] = field(default_factory=dict)
    call_check: AnswerCheck | None = None
    redactor: Redactor | None = None
    repairer: Repairer | None = None
    blockers: tuple[Blocker, ...] = ()
    regenerate: bool = False


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of validating one answer.

    `text` is the sanitised answer, `removals` the removed passages, with spans in the model's
    original text. `issues` make the answer invalid, `notices` do not. An invalid answer is reported
    but never withheld; `retry` means that another answer is likely to be better.
    """

    text: str
    intent: str
    issues: tuple[Issue, ...] = ()
    notices: tuple[Issue, ...] = ()
    removals: tuple[Removal, ...] = ()
    retry: bool = False

    @property
    def valid(self) -> bool:
        """Return whether there are no issues; notices do not count."""
        return not self.issues


class Validator(Protocol):
    """Checks requests and answers, in linear time. Any thread may call it."""

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        """Return the verdict on a request that must not be answered, or None for other requests.

        The intent is detected from `prompt`; blocked terms are searched in `conversation`, which
        has all messages of the user.
        """

    def validate(self, subject: Subject, options: Options) -> Verdict:
        """Return the verdict on a finished answer. Never raises, for any text."""

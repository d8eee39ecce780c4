"""Validation of answers: text in, verdict out, independent of engines and jobs."""

from validation.issues import Issue, Removal, Subject
from validation.verdict import NO_OPTIONS, Options, Validator, Verdict

__all__ = ["NO_OPTIONS", "Issue", "Options", "Removal", "Subject", "Validator", "Verdict"]

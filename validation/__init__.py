"""Text in, verdict out: what an answer is checked for. Knows nothing of engines or jobs."""

from validation.findings import Issue, Removal, Subject
from validation.verdict import NO_OPTIONS, Options, Validator, Verdict

__all__ = ["NO_OPTIONS", "Issue", "Options", "Removal", "Subject", "Validator", "Verdict"]

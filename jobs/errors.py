"""What a store can answer instead of doing what it was asked."""

from __future__ import annotations


class JobsError(Exception):
    """Base of what stores raise; the message is a sentence for whoever asked."""


class StoreFull(JobsError):
    """As many jobs, or as many bytes of them, are kept as may be."""


class StoreUnavailable(JobsError):
    """The disk did not take it: full, read-only, locked or gone. Nothing has changed."""


class StoreUnusable(StoreUnavailable):
    """The store cannot be opened until a person has done something; retrying does not help."""


class NotRetryable(JobsError):
    """Only a job that failed or timed out can be run again."""

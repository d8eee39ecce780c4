"""Errors that a job store or queue raises."""

from __future__ import annotations


class JobsError(Exception):
    """Base of the errors of stores and queues; its message is a sentence for the client."""


class StoreFull(JobsError):
    """The store holds as many jobs, or as many bytes, as its limits allow."""


class StoreUnavailable(JobsError):
    """The disk refused the write: it is full, read-only, locked or gone. Nothing has changed."""


class StoreUnusable(StoreUnavailable):
    """The store cannot be opened until an operator intervenes; retrying does not help."""


class NotRetryable(JobsError):
    """The job has neither failed nor timed out, so it cannot be run again."""

"""Translation of SQS errors to the errors of stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from jobs.errors import JobsError, StoreUnavailable

# Codes for an expired or foreign receipt handle.
_LEASE_EXPIRED_CODES = {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"}
# Codes of temporary errors. Other errors of the client do not go away by a retry.
_TEMPORARY_CODES = {
    "InternalError",
    "InternalFailure",
    "KmsThrottled",
    "OverLimit",
    "RequestThrottled",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
}
_CONFIGURATION_ERRORS = (
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)


class QueueRefused(JobsError):
    """The queue or bucket does not exist, or access is denied; a retry does not help."""


class LeaseExpired(JobsError):
    """A receipt handle is no longer valid: the message was leased again or deleted."""


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Raise boto3's errors as those of a store; `name` is the queue, for the message."""
    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        raise to_store_error(name, error.response.get("Error", {}), status) from None
    except _CONFIGURATION_ERRORS as error:
        raise QueueRefused(f"{name}: {error}") from None
    except BotoCoreError as error:
        raise StoreUnavailable(f"{name}: {error}") from None


def to_store_error(name: str, error: Mapping[str, Any], status: int = 400) -> JobsError:
    """Convert the error of a request, or of one of its entries, to a store error."""
    # AWS.SimpleQueueService.NonExistentQueue
    code = str(error.get("Code", "an error")).rpartition(".")[2]
    message = f"{name}: {code}: {error.get('Message') or 'no reason was given'}"
    if code in _LEASE_EXPIRED_CODES:
        return LeaseExpired(message)
    if code in _TEMPORARY_CODES or status >= 500:
        return StoreUnavailable(message)
    return QueueRefused(message)

"""What goes wrong between here and SQS, told as a store's errors."""

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

# A receipt handle of a message that is not, or no longer, this one's.
_OVER = {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"}
# What another try may end better for; everything else of a client's fault stays as it is.
_PASSES = {
    "InternalError",
    "InternalFailure",
    "KmsThrottled",
    "OverLimit",
    "RequestThrottled",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
}
_OURS = (
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)


class QueueRefused(JobsError):
    """There is no such queue or bucket, or whoever asks may not: another try ends the same."""


class LeaseOver(JobsError):
    """A receipt handle counts no more: the message is somebody else's, or gone."""


@contextmanager
def told(name: str) -> Iterator[None]:
    """Tell boto3's errors as those of a store; `name` is what was asked."""
    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        raise failure(name, error.response.get("Error", {}), status) from None
    except _OURS as error:
        raise QueueRefused(f"{name}: {error}") from None
    except BotoCoreError as error:
        raise StoreUnavailable(f"{name}: {error}") from None


def failure(name: str, error: Mapping[str, Any], status: int = 400) -> JobsError:
    """Return what SQS says of a request, or of one entry of it."""
    # AWS.SimpleQueueService.NonExistentQueue
    code = str(error.get("Code", "an error")).rpartition(".")[2]
    message = f"{name}: {code}: {error.get('Message') or 'no reason was given'}"
    if code in _OVER:
        return LeaseOver(message)
    if code in _PASSES or status >= 500:
        return StoreUnavailable(message)
    return QueueRefused(message)

"""The interface of blob stores, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


class BlobError(Exception):
    """A blob cannot be read or written; the message names it and gives the reason."""

    retryable = False


class BlobNotFound(BlobError):
    """The blob, or its folder or bucket, does not exist."""


class BlobDenied(BlobError):
    """Access is denied: no credentials, wrong or expired ones, or no permission."""


class BlobUnsupported(BlobError):
    """The store does not support the operation, such as a write only if the key is absent."""


class BlobUnavailable(BlobError):
    """The store does not respond, or refuses temporarily; a retry may succeed."""

    retryable = True


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One blob in a listing; `size` in bytes, `modified_s` in seconds since 1970."""

    key: str
    size: int
    modified_s: float


class BlobStore(Protocol):
    """A store of blobs by key; keys are paths with slashes.

    A blob appears atomically: all readers see either no blob or a complete one. All methods block,
    may be called from several threads, and raise BlobError.
    """

    def read(self, key: str) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""

    def write(self, key: str, body: bytes, *, only_if_absent: bool = False) -> bool:
        """Write a blob; return whether it was written.

        With `only_if_absent` it is written only if the key has no blob; only one of several
        concurrent writers succeeds.
        """

    def upload(self, key: str, pieces: Iterable[bytes], *, only_if_absent: bool = False) -> bool:
        """Write a blob that is too large for memory; otherwise as `write`."""

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys start with `prefix`, ordered by key."""

    def remove(self, key: str) -> None:
        """Delete a blob if it exists."""

    def link(self, key: str, expires_s: int) -> str:
        """Return a URL that gives read access to a blob until it expires."""

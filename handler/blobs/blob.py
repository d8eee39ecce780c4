"""The port to wherever blobs are kept, and what can go wrong there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


class BlobError(Exception):
    """A blob cannot be read or written; the message names it and says why."""

    retryable = False


class BlobNotFound(BlobError):
    """There is no such blob, or no such place."""


class BlobDenied(BlobError):
    """Whoever asks may not: no credentials, wrong or expired ones, or no permission."""


class BlobUnsupported(BlobError):
    """The place does not know what was asked of it, such as to write only what is absent."""


class BlobUnavailable(BlobError):
    """The place does not answer, or says that it cannot now: another time it may."""

    retryable = True


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One blob in a listing; `size` in bytes, `modified_s` in seconds since 1970."""

    key: str
    size: int
    modified_s: float


class BlobStore(Protocol):
    """Blobs of one place by their keys, which are paths with slashes.

    A blob is there whole or not at all, for everybody at once. All calls block, and may be made
    from several threads. Each raises BlobError.
    """

    def read(self, key: str) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""

    def write(self, key: str, body: bytes, *, absent: bool = False) -> bool:
        """Keep a blob; with `absent` only where there is none, of several writers just one.

        Returns whether it was written.
        """

    def upload(self, key: str, pieces: Iterable[bytes], *, absent: bool = False) -> bool:
        """Do the same for one that is too large to be in memory."""

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys begin so, in the order of their keys."""

    def remove(self, key: str) -> None:
        """Forget a blob, if it is there."""

    def link(self, key: str, expires_s: int) -> str:
        """Return an address at which anybody can read a blob until it expires."""

"""Where the lines of a finished batch go: a file, a bucket, the standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from handler.blobs import BlobStore
from jobs.sqlite.private_files import open_private, sync_folder

STDOUT = "-"
_S3_SCHEME = "s3://"
_NEW_SUFFIX = ".new"


class Destination(Protocol):
    """A place that has all lines or none."""

    @property
    def name(self) -> str:
        """Its last part, as a file would be called."""

    def exists(self) -> bool:
        """Whether something is there. Raises OSError or BlobError."""

    def write(self, lines: Iterable[bytes]) -> None:
        """Put lines there, in place of what is. Raises OSError or BlobError."""

    def remove(self) -> None:
        """Have nothing there. Raises OSError or BlobError."""


class FileDestination:
    """A file, which gets its name when it is complete and on disk.

    A `private` file has mode 0600 whatever the umask; other files follow the umask.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._private = private

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def exists(self) -> bool:
        """Whether there is such a file."""
        return self.path.exists()

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the file's content by lines; after a failure the old content stays.

        Raises OSError.
        """
        new = self.path.with_name(self.path.name + _NEW_SUFFIX)
        try:
            with open(new, "wb", 1 << 20, opener=open_private if self._private else None) as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            # On a full disk, the incomplete file would take the space that others need.
            new.unlink(missing_ok=True)
            raise
        new.replace(self.path)
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """Remove the file, if it exists, so that it stays removed after a power failure."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return
        sync_folder(self.path.parent)


class BlobDestination:
    """An object in a bucket, uploaded in parts and there when the last one is."""

    def __init__(self, url: str, blobs: BlobStore, key: str) -> None:
        self._url = url
        self._blobs = blobs
        self._key = key

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self._key).name

    def exists(self) -> bool:
        """Whether there is such an object. Raises BlobError."""
        return any(found.key == self._key for found in self._blobs.list(self._key))

    def write(self, lines: Iterable[bytes]) -> None:
        """Put lines there. Raises BlobError."""
        self._blobs.upload(self._key, lines)

    def remove(self) -> None:
        """Remove the object, if it is there. Raises BlobError."""
        self._blobs.remove(self._key)


class StdoutDestination:
    """The standard output: whoever reads it gets the lines at the end."""

    name = "stdout"

    def exists(self) -> bool:
        """Nothing can be there."""
        return False

    def write(self, lines: Iterable[bytes]) -> None:
        """Print lines. Raises OSError."""
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()

    def remove(self) -> None:
        """Nothing can be there."""


def open_destination(given: str) -> Destination:
    """Return the place that a user names."""
    if given == STDOUT:
        return StdoutDestination()
    if is_blob_url(given):
        return BlobDestination(given, *open_blob(given))
    return FileDestination(Path(given))


def is_blob_url(given: str) -> bool:
    """Whether an address is one in a bucket."""
    return given.startswith(_S3_SCHEME)


def open_blob(url: str) -> tuple[BlobStore, str]:
    """Return an address's bucket and key. Raises ValueError."""
    bucket, _, key = url.removeprefix(_S3_SCHEME).partition("/")
    if not bucket or not key or key.endswith("/"):
        raise ValueError(f"{url} must be s3://BUCKET/KEY")
    # Its packages take longer to import than all the rest, and most batches stay on the disk.
    from handler.blobs.s3 import S3Blobs, s3_client

    return S3Blobs(bucket, s3_client()), key

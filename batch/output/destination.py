"""Destinations of a finished batch: a file, an S3 object or the standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from common.atomic_files import replace_file
from common.private_files import FILE_MODE, sync_folder
from handler.delivery.blobs import BlobStore

STDOUT = "-"
_S3_SCHEME = "s3://"


class Destination(Protocol):
    """A place for the output. It holds all lines or none."""

    @property
    def name(self) -> str:
        """The file name, without folders."""

    def exists(self) -> bool:
        """Return whether the destination exists. Raises OSError or BlobError."""

    def find_size(self) -> int | None:
        """Return the size in bytes; None if it does not exist. Raises OSError or BlobError."""

    def read(self) -> bytes:
        """Return the content. Raises OSError or BlobError."""

    def sibling(self, name: str) -> Destination | None:
        """Return the destination with another name in the same folder; None if there is none."""

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the content by lines. Raises OSError or BlobError."""

    def remove(self) -> None:
        """Remove the destination, if it exists. Raises OSError or BlobError."""


class FileDestination:
    """A file, written under a temporary name and renamed when it is complete and on disk.

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
        """Return whether the file exists."""
        return self.path.exists()

    def find_size(self) -> int | None:
        """Return the size in bytes; None if there is no file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return None

    def read(self) -> bytes:
        """Return the content. Raises OSError."""
        return self.path.read_bytes()

    def sibling(self, name: str) -> FileDestination:
        """Return the file with another name in the same folder."""
        return FileDestination(self.path.with_name(name))

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the file's content by lines; after a failure the old content remains.

        Raises OSError.
        """
        replace_file(self.path, lines, FILE_MODE if self._private else None)

    def remove(self) -> None:
        """Remove the file, if it exists, and sync the folder in case of a power failure."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return
        sync_folder(self.path.parent)


class BlobDestination:
    """An object in a bucket. It exists when its last part is uploaded."""

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
        """Return whether the object exists. Raises BlobError."""
        return self.find_size() is not None

    def find_size(self) -> int | None:
        """Return the size in bytes; None if there is no object. Raises BlobError."""
        for blob in self._blobs.list(self._key):
            if blob.key == self._key:
                return blob.size
        return None

    def read(self) -> bytes:
        """Return the content. Raises BlobError."""
        return b"".join(self._blobs.read(self._key))

    def sibling(self, name: str) -> BlobDestination:
        """Return the object with another name in the same folder of the bucket."""
        folder = self._key[: len(self._key) - len(self.name)]
        url = self._url[: len(self._url) - len(self.name)]
        return BlobDestination(url + name, self._blobs, folder + name)

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the object by lines. Raises BlobError."""
        self._blobs.upload(self._key, lines)

    def remove(self) -> None:
        """Remove the object, if it exists. Raises BlobError."""
        self._blobs.remove(self._key)


class StdoutDestination:
    """The standard output, which gets all lines at the end of the batch."""

    name = "stdout"

    def exists(self) -> bool:
        """Return False: the standard output has no earlier content."""
        return False

    def find_size(self) -> int | None:
        """Return None: the standard output has no earlier content."""
        return None

    def read(self) -> bytes:
        """Return nothing: the standard output has no earlier content."""
        return b""

    def sibling(self, name: str) -> None:
        """Return None: the standard output is in no folder."""

    def write(self, lines: Iterable[bytes]) -> None:
        """Print lines. Raises OSError."""
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()

    def remove(self) -> None:
        """Do nothing: the standard output has no earlier content."""


def open_destination(address: str) -> Destination:
    """Return the destination for an option's value: `-`, an s3:// address or a path."""
    if address == STDOUT:
        return StdoutDestination()
    if is_blob_url(address):
        return BlobDestination(address, *open_blob(address))
    return FileDestination(Path(address))


def is_blob_url(address: str) -> bool:
    """Return whether an address is an s3:// address."""
    return address.startswith(_S3_SCHEME)


def open_blob(url: str) -> tuple[BlobStore, str]:
    """Return the bucket and the key of an s3:// address. Raises ValueError."""
    bucket, _, key = url.removeprefix(_S3_SCHEME).partition("/")
    if not bucket or not key or key.endswith("/"):
        raise ValueError(f"{url} must be s3://BUCKET/KEY")
    # Imported here because the AWS packages take longer to import than everything else, and most
    # batches use local files.
    from handler.delivery.blobs.s3 import S3Blobs, s3_client

    return S3Blobs(bucket, s3_client()), key

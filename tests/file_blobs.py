"""A blob store in a folder, for tests of what is written to a bucket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from handler.delivery.blobs.blob import (
    BlobDenied,
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
)

_READ_BYTES = 1 << 20
# The prefix of temporary files; `list` ignores them.
_UNFINISHED = ".unfinished-"


class FileBlobs:
    """Stores each blob as a file below one folder.

    A blob is written to a temporary file in the same folder, synced to disk, and then linked or
    renamed to its path. So a reader sees a complete blob or none, also after a power failure.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""
        with _translate_errors(self._resolve_path(key)) as path, path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece

    def write(self, key: str, body: bytes, *, only_if_absent: bool = False) -> bool:
        """Write a blob; return whether it was written."""
        return self.upload(key, (body,), only_if_absent=only_if_absent)

    def upload(self, key: str, pieces: Iterable[bytes], *, only_if_absent: bool = False) -> bool:
        """Write a blob; return whether it was written."""
        with _translate_errors(self._resolve_path(key)) as path:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(prefix=_UNFINISHED, dir=path.parent, delete=False)
            unfinished = Path(file.name)
            try:
                with file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
                return (
                    _link_if_absent(unfinished, path)
                    if only_if_absent
                    else _replace(unfinished, path)
                )
            finally:
                unfinished.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys start with `prefix`, ordered by key."""
        blobs = []
        for path in self._folder.rglob("*"):
            key = path.relative_to(self._folder).as_posix()
            if key.startswith(prefix) and not path.name.startswith(_UNFINISHED) and path.is_file():
                # The file may have been deleted since it was listed.
                with suppress(FileNotFoundError):
                    status = path.stat()
                    blobs.append(BlobInfo(key, status.st_size, status.st_mtime))
        yield from sorted(blobs, key=lambda each: each.key)

    def remove(self, key: str) -> None:
        """Delete a blob if it exists."""
        with _translate_errors(self._resolve_path(key)) as path:
            path.unlink(missing_ok=True)

    def link(self, key: str, expires_s: int) -> str:
        """Return the file's URL, which does not expire."""
        return self._resolve_path(key).absolute().as_uri()

    def _resolve_path(self, key: str) -> Path:
        path = self._folder / key
        is_inside = Path(os.path.normpath(path)).is_relative_to(os.path.normpath(self._folder))
        if not key or key.startswith("/") or key.endswith("/") or not is_inside:
            raise BlobError(f"{key!r} is not a key: it must be a path below the folder")
        return path


def _link_if_absent(unfinished: Path, path: Path) -> bool:
    # Unlike a rename, a link fails if the path exists already.
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        return False
    _sync_folder(path.parent)
    return True


def _replace(unfinished: Path, path: Path) -> bool:
    unfinished.replace(path)
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    """Write the folder's entries to disk, so that a new file name survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors(path: Path) -> Iterator[Path]:
    """Raise errors of the operating system as BlobError."""
    try:
        yield path
    except FileNotFoundError:
        raise BlobNotFound(f"{path} is not there") from None
    except PermissionError:
        raise BlobDenied(f"{path}: permission denied") from None
    except OSError as error:
        raise BlobUnavailable(f"{path}: {error.strerror or error}") from None

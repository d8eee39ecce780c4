"""Blobs in a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from handler.blobs.blob import BlobDenied, BlobError, BlobInfo, BlobNotFound, BlobUnavailable

_READ_BYTES = 1 << 20
# What is being written has a name that no key may have.
_UNFINISHED = ".unfinished-"


class FileBlobs:
    """Keeps each blob in a file of its own below one folder.

    Written beside its place and then linked or renamed to it, synced before: whoever reads sees the
    whole or nothing, also after a power cut. Holds nothing but the folder's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces. Raises BlobNotFound."""
        with _told(self._place(key)) as path, path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece

    def write(self, key: str, body: bytes, *, absent: bool = False) -> bool:
        """Keep a blob; return whether it was written."""
        return self.upload(key, (body,), absent=absent)

    def upload(self, key: str, pieces: Iterable[bytes], *, absent: bool = False) -> bool:
        """Keep a blob; return whether it was written."""
        with _told(self._place(key)) as path:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(prefix=_UNFINISHED, dir=path.parent, delete=False)
            unfinished = Path(file.name)
            try:
                with file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
                return _put(unfinished, path) if absent else _replace(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Yield the blobs whose keys begin so, in the order of their keys."""
        found = []
        for path in self._folder.rglob("*"):
            key = path.relative_to(self._folder).as_posix()
            if key.startswith(prefix) and not path.name.startswith(_UNFINISHED) and path.is_file():
                # It may have gone since.
                with suppress(FileNotFoundError):
                    known = path.stat()
                    found.append(BlobInfo(key, known.st_size, known.st_mtime))
        yield from sorted(found, key=lambda each: each.key)

    def remove(self, key: str) -> None:
        """Forget a blob, if it is there."""
        with _told(self._place(key)) as path:
            path.unlink(missing_ok=True)

    def link(self, key: str, expires_s: int) -> str:
        """Return the file's address; a file does not expire."""
        return self._place(key).absolute().as_uri()

    def _place(self, key: str) -> Path:
        path = self._folder / key
        inside = Path(os.path.normpath(path)).is_relative_to(os.path.normpath(self._folder))
        if not key or key.startswith("/") or key.endswith("/") or not inside:
            raise BlobError(f"{key!r} is not a key: it must be a path below the folder")
        return path


def _put(unfinished: Path, path: Path) -> bool:
    # A link fails where there is something already, whoever was first: a rename does not.
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        return False
    _sync(path.parent)
    return True


def _replace(unfinished: Path, path: Path) -> bool:
    unfinished.replace(path)
    _sync(path.parent)
    return True


def _sync(folder: Path) -> None:
    """Have a new name on disk as well."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _told(path: Path) -> Iterator[Path]:
    """Tell an operating system's error as one of a blob's."""
    try:
        yield path
    except FileNotFoundError:
        raise BlobNotFound(f"{path} is not there") from None
    except PermissionError:
        raise BlobDenied(f"{path}: permission denied") from None
    except OSError as error:
        raise BlobUnavailable(f"{path}: {error.strerror or error}") from None

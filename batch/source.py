"""Where a batch is read from: a file, or what is copied into one first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch.target import is_blob, open_blob
from handler.blobs import BlobError

STDIN = "-"
_WEB = ("http://", "https://")
_READ_BYTES = 1 << 20
_TIMEOUT_S = 60.0


class InputError(Exception):
    """The input cannot be read or is too large; the message is one sentence."""


class Source:
    """Reads the lines of a local file, as often as one likes.

    A batch is read twice, to be looked over and to be answered. A line of more than
    `max_line_bytes` is cut off behind the first byte that is too many, so none fills the memory.
    """

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        self.path = path
        self.max_line_bytes = max_line_bytes

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends. Raises InputError."""
        most = self.max_line_bytes + 1
        try:
            with self.path.open("rb", buffering=_READ_BYTES) as file:
                while line := file.readline(most):
                    yield line
                    while len(line) == most and not line.endswith(b"\n"):
                        line = file.readline(most)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None


def fetch(given: str, spool: Path, max_bytes: int) -> Path:
    """Return the local file of an input, copied to `spool` where it is none.

    Raises:
        InputError: it is not there, cannot be read or is larger than allowed.
    """
    try:
        if given == STDIN:
            chunks = iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
            return _copy(chunks, spool, max_bytes, "the standard input")
        if is_blob(given):
            blobs, key = open_blob(given)
            return _copy(blobs.read(key), spool, max_bytes, given)
        if given.startswith(_WEB):
            return _download(given, spool, max_bytes)
        path = Path(given)
        if not path.is_file():
            raise InputError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        size = path.stat().st_size
    except (BlobError, ValueError) as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"{given} cannot be read: {error.strerror}") from None
    if size > max_bytes:
        raise InputError(_too_large(given, max_bytes))
    return path


def _download(url: str, spool: Path, max_bytes: int) -> Path:
    # Most inputs are files.
    import httpx2

    try:
        with httpx2.stream("GET", url, timeout=_TIMEOUT_S, follow_redirects=True) as answer:
            if answer.status_code != 200:
                raise InputError(f"{url} answered with {answer.status_code}")
            return _copy(answer.iter_bytes(), spool, max_bytes, url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise InputError(f"{url} cannot be read: {error}") from None


def _copy(chunks: Iterable[bytes], spool: Path, max_bytes: int, name: str) -> Path:
    copied = 0
    with spool.open("wb") as file:
        for chunk in chunks:
            copied += len(chunk)
            if copied > max_bytes:
                raise InputError(_too_large(name, max_bytes))
            file.write(chunk)
    return spool


def _too_large(name: str, max_bytes: int) -> str:
    return f"{name} is larger than {max_bytes // 1_000_000} MB (BATCH_MAX_MB)"

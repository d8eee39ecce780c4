"""Where a batch is read from: a file, or what is copied into one first."""

from __future__ import annotations

import hashlib
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch.output.destination import is_blob_url, open_blob
from handler.blobs import BlobError

STDIN = "-"
_HTTP_SCHEMES = ("http://", "https://")
_READ_BYTES = 1 << 20
_TIMEOUT_S = 60.0


class InputError(Exception):
    """The input cannot be read or is too large; the message is one sentence."""


class LineSource:
    """Reads the lines of a local file, any number of times.

    A batch is read twice: its lines are checked, and later answered. The first whole reading keeps
    a hash of eight bytes for each line, and every later one must find the same lines: an answer to
    a line that was not checked, or to another line than its journal says, would be worse than none.
    A line of more than `max_line_bytes` is cut off behind the first byte that is too many, so none
    fills the memory.
    """

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        self.path = path
        self.max_line_bytes = max_line_bytes
        self._hashes: array[int] | None = None

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends. Raises InputError, also if the file was changed."""
        known, hashes = self._hashes, array("Q")
        number = 0
        for line in self._read():
            number += 1
            hashed = _hash_line(line)
            if known is None:
                hashes.append(hashed)
            elif number > len(known):
                raise self._changed(f"it has more than {len(known):,} lines now")
            elif hashed != known[number - 1]:
                raise self._changed(f"line {number:,} is another one")
            yield line
        if known is None:
            self._hashes = hashes
        elif number < len(known):
            raise self._changed(f"it has {number:,} of {len(known):,} lines")

    def _changed(self, difference: str) -> InputError:
        return InputError(
            f"{self.path} was changed during the run, {difference}: restore it as it was"
        )

    def _read(self) -> Iterator[bytes]:
        most = self.max_line_bytes + 1
        try:
            with self.path.open("rb", buffering=_READ_BYTES) as file:
                while line := file.readline(most):
                    yield line
                    while len(line) == most and not line.endswith(b"\n"):
                        line = file.readline(most)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None


def _hash_line(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=8).digest(), "big")


def fetch_input(given: str, spool: Path, max_bytes: int) -> Path:
    """Return the local file of an input, copied to `spool` where it is none.

    Raises:
        InputError: it is not there, cannot be read or is larger than allowed.
    """
    try:
        if given == STDIN:
            chunks = iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
            return _copy_to_file(chunks, spool, max_bytes, "the standard input")
        if is_blob_url(given):
            blobs, key = open_blob(given)
            return _copy_to_file(blobs.read(key), spool, max_bytes, given)
        if given.startswith(_HTTP_SCHEMES):
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
        headers = {"accept-encoding": "gzip"}
        with httpx2.stream(
            "GET", url, timeout=_TIMEOUT_S, follow_redirects=True, headers=headers
        ) as answer:
            if answer.status_code != 200:
                raise InputError(f"{url} answered with {answer.status_code}")
            encoding = answer.headers.get("content-encoding", "identity").lower()
            # The library would unpack each piece at once, and a piece of 64 KB may become 64 GB.
            chunks: Iterable[bytes] = answer.iter_raw(_READ_BYTES)
            if encoding in ("gzip", "x-gzip"):
                chunks = _decompress(chunks, url)
            elif encoding != "identity":
                raise InputError(f"{url} answered with content-encoding {encoding!r}, not gzip")
            return _copy_to_file(chunks, spool, max_bytes, url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise InputError(f"{url} cannot be read: {error}") from None


def _decompress(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield what gzip data contains, in pieces of a bounded size. Raises InputError."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            packed = chunk
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _READ_BYTES)
                packed = unpacker.unconsumed_tail
        while not unpacker.eof and (piece := unpacker.decompress(b"", _READ_BYTES)):
            yield piece
    except zlib.error as error:
        raise InputError(f"{name} is not the gzip data that it says: {error}") from None
    if not unpacker.eof:
        raise InputError(f"{name} ended in the middle of its gzip data")


def _copy_to_file(chunks: Iterable[bytes], spool: Path, max_bytes: int, name: str) -> Path:
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

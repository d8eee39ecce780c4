"""Reads the input of a batch: a local file, or a local copy of stdin, a URL or an S3 object."""

from __future__ import annotations

import hashlib
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch.output.destination import is_blob_url, open_blob
from handler.delivery.blobs import BlobError

STDIN = "-"
_HTTP_SCHEMES = ("http://", "https://")
_READ_BYTES = 1 << 20
_TIMEOUT_S = 60.0
# More of them at the end of a file are lines like any other, which bounds the memory.
_MAX_BLANK_LINES = 1_000


class InputError(Exception):
    """The input cannot be read or is too large; the message is one sentence."""


class LineSource:
    """Reads the lines of a local file, any number of times, and detects changes between readings.

    A batch is read twice: its lines are checked, and later answered. The first complete reading
    keeps a hash of eight bytes per line, and each later reading compares. This prevents answers to
    unchecked lines and answers in the journal under the wrong line number. A line longer than
    `max_line_bytes` is cut off after `max_line_bytes` + 1 bytes, to bound memory.
    """

    # Whether an input without lines is one; a part of a short file may have none.
    may_be_empty = False

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        self.path = path
        self.max_line_bytes = max_line_bytes
        self._hashes: array[int] | None = None

    @property
    def lines_before(self) -> int:
        """The number of lines of the file that are not part of this source, and precede it."""
        return 0

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends, without blank ones at the end of the file.

        Raises:
            InputError: the file cannot be read or was changed.
        """
        expected, hashes = self._hashes, array("Q")
        number = 0
        for line in self._read_lines():
            number += 1
            line_hash = _hash_line(line)
            if expected is None:
                hashes.append(line_hash)
            elif number > len(expected):
                raise self._changed_error(f"it has more than {len(expected):,} lines now")
            elif line_hash != expected[number - 1]:
                raise self._changed_error(f"line {number:,} is another one")
            yield line
        if expected is None:
            self._hashes = hashes
        elif number < len(expected):
            raise self._changed_error(f"it has {number:,} of {len(expected):,} lines")

    def _read_lines(self) -> Iterator[bytes]:
        return _without_blank_end(self._read())

    def _changed_error(self, difference: str) -> InputError:
        return InputError(
            f"{self.path} was changed during the run, {difference}: restore it as it was"
        )

    def _read(self) -> Iterator[bytes]:
        max_read_bytes = self.max_line_bytes + 1
        try:
            with self.path.open("rb", buffering=_READ_BYTES) as file:
                while line := file.readline(max_read_bytes):
                    yield line
                    while len(line) == max_read_bytes and not line.endswith(b"\n"):
                        line = file.readline(max_read_bytes)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None


def _without_blank_end(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without the blank ones at the end, which editors and scripts leave there."""
    blank_lines: list[bytes] = []
    for line in lines:
        if not line.strip() and len(blank_lines) < _MAX_BLANK_LINES:
            blank_lines.append(line)
        else:
            yield from blank_lines
            blank_lines.clear()
            yield line


def _hash_line(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=8).digest(), "big")


def fetch_input(address: str, spool: Path, max_bytes: int) -> Path:
    """Return the local file of an input address; other inputs are copied to `spool` first.

    Raises:
        InputError: the input does not exist, cannot be read or is larger than allowed.
    """
    try:
        if address == STDIN:
            chunks = iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
            return _copy_to_file(chunks, spool, max_bytes, "the standard input")
        if is_blob_url(address):
            blobs, key = open_blob(address)
            return _copy_to_file(blobs.read(key), spool, max_bytes, address)
        if address.startswith(_HTTP_SCHEMES):
            return _download(address, spool, max_bytes)
        path = Path(address)
        if not path.is_file():
            raise InputError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        size = path.stat().st_size
    except (BlobError, ValueError) as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"{address} cannot be read: {error.strerror}") from None
    if size > max_bytes:
        raise InputError(_too_large(address, max_bytes))
    return path


def _download(url: str, spool: Path, max_bytes: int) -> Path:
    # Imported here because most inputs are files.
    import httpx2

    try:
        headers = {"accept-encoding": "gzip"}
        with httpx2.stream(
            "GET", url, timeout=_TIMEOUT_S, follow_redirects=True, headers=headers
        ) as response:
            if response.status_code != 200:
                raise InputError(f"{url} answered with {response.status_code}")
            encoding = response.headers.get("content-encoding", "identity").lower()
            # The library's own decompression of a chunk is unbounded: a gzip bomb of 64 KB would
            # need gigabytes of memory. `_decompress` limits the size of its chunks.
            chunks: Iterable[bytes] = response.iter_raw(_READ_BYTES)
            if encoding in ("gzip", "x-gzip"):
                chunks = _decompress(chunks, url)
            elif encoding != "identity":
                raise InputError(f"{url} answered with content-encoding {encoding!r}, not gzip")
            return _copy_to_file(chunks, spool, max_bytes, url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise InputError(f"{url} cannot be read: {error}") from None


def _decompress(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield decompressed gzip data in chunks of at most _READ_BYTES. Raises InputError."""
    decompressor = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            compressed = chunk
            while compressed and not decompressor.eof:
                yield decompressor.decompress(compressed, _READ_BYTES)
                compressed = decompressor.unconsumed_tail
        while not decompressor.eof and (decompressed := decompressor.decompress(b"", _READ_BYTES)):
            yield decompressed
    except zlib.error as error:
        raise InputError(f"{name} is not the gzip data that it says: {error}") from None
    if not decompressor.eof:
        raise InputError(f"{name} ended in the middle of its gzip data")


def _copy_to_file(chunks: Iterable[bytes], spool: Path, max_bytes: int, name: str) -> Path:
    size_bytes = 0
    with spool.open("wb") as file:
        for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise InputError(_too_large(name, max_bytes))
            file.write(chunk)
    return spool


def _too_large(name: str, max_bytes: int) -> str:
    return f"{name} is larger than {max_bytes // 1_000_000} MB (BATCH_MAX_MB)"

"""The journal of a batch: each answer is appended to a file as soon as it is complete."""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from common.private_files import open_private, sync_folder

SUFFIX = ".partial"
_SYNC_INTERVAL_S = 1.0
_READ_BYTES = 1 << 20
_FORMAT = 2


class JournalError(Exception):
    """The journal cannot be used; the message is one sentence with a remedy."""


class JournalDamaged(JournalError):
    """The file is not a journal, or its first line is damaged."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The first line of a journal, which identifies the input."""

    digest: str
    lines: int
    format: int = _FORMAT


class BatchJournal:
    """An append-only file of answers next to the output, which is written from it at the end.

    A record is `<line> <1, or 0 for failed> <CRC-32> <answer>` and a line feed. Records are in the
    order in which the lines were answered. A line with a record is never answered again, even if
    lines before it have no answer yet. Each record is with the operating system when `add` returns,
    so a killed process loses nothing. Records are synced to the disk once a second, so a power
    failure loses the answers of the last second.

    Opening a journal cuts off an incomplete last record. Any other damaged record stays in the file
    and is ignored: its line counts as unanswered, and the records after it are used. Only the owner
    can read the file, because it contains answers.

    Memory is 17 bytes for each line of the input. Owned by one thread; a second thread syncs.
    """

    def __init__(
        self,
        path: Path,
        *,
        fresh: bool = False,
        expected: JournalHeader | None = None,
        reserve: Callable[[int], object] = lambda size: None,
    ) -> None:
        """Open or create a journal; `fresh` discards an existing one.

        If the caller knows the input without the journal, `expected` replaces a damaged first line.
        `reserve` is called with the file's future size in bytes before an answer is written; if it
        raises, the answer is not written. Raises JournalError.
        """
        self.path = path
        self._reserve = reserve
        self.header: JournalHeader | None = None
        self.done = 0
        self.failed = 0
        # Number of records that were ignored when the journal was opened.
        self.damaged_records = 0
        # For each line's answer: its offset, its length (0 for no answer), whether it succeeded.
        self._offsets: array[int] = array("Q")
        self._lengths: array[int] = array("L")
        self._ok = bytearray()
        self._needs_sync = False
        self._sync_error: OSError | None = None
        self._size_bytes = 0
        try:
            self._fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise JournalError(f"another run is using {path}") from None
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}") from None
        try:
            if fresh:
                os.ftruncate(self._fd, 0)
            self._recover(expected)
        except BaseException:
            os.close(self._fd)
            raise
        self._closed = threading.Event()
        self._syncer = threading.Thread(target=self._sync_forever, name="journal", daemon=True)
        self._syncer.start()

    @property
    def lines(self) -> int:
        """The number of lines of the input."""
        return len(self._ok)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size_bytes

    @property
    def lost_lines(self) -> int:
        """The maximum number of lines whose answers were lost to damaged records."""
        return min(self.damaged_records, self.lines - self.done)

    def begin(self, header: JournalHeader) -> None:
        """Start a journal for an input, discarding all records. Raises OSError."""
        os.ftruncate(self._fd, 0)
        self._size_bytes = 0
        self.damaged_records = 0
        self._reset_index(header)
        self._write(orjson.dumps(asdict(header)) + b"\n")
        # After a power failure, the file must still exist for the records that are synced later.
        sync_folder(self.path.parent)

    def add(self, number: int, answer: bytes, *, ok: bool) -> None:
        """Write the answer to a line.

        Raises OSError and the errors of `reserve`; after an error the record does not exist.
        """
        if self._sync_error is not None:
            raise self._sync_error
        checksum = _checksum(b"%d %d" % (number, ok), answer)
        record = b"%d %d %08x %b\n" % (number, ok, checksum, answer)
        self._reserve(self._size_bytes + len(record))
        self._write(record)
        self._index_record(number, len(answer) + 1, ok=ok)

    def is_missing(self, number: int) -> bool:
        """Return whether a line has no answer yet."""
        return not self._lengths[number - 1]

    def answers(self, *, ok: bool, ordered: bool = True) -> Iterator[bytes]:
        """Yield the successful or the failed answers with their line feeds.

        They are in the order of the input if `ordered`, otherwise in the order of the journal.
        """
        offsets, lengths = self._offsets, self._lengths
        indices: Iterable[int] = range(len(offsets))
        if not ordered:
            indices = sorted(indices, key=offsets.__getitem__)
        for index in indices:
            if lengths[index] and self._ok[index] == ok:
                yield os.pread(self._fd, lengths[index], offsets[index])

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Sync and close the file. Raises OSError."""
        self._closed.set()
        self._syncer.join()
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _reset_index(self, header: JournalHeader) -> None:
        self.header = header
        self.done = self.failed = 0
        self._offsets = array("Q", [0]) * header.lines
        self._lengths = array("L", [0]) * header.lines
        self._ok = bytearray(header.lines)

    def _recover(self, expected: JournalHeader | None) -> None:
        """Index the records of an earlier run, and cut off an incomplete last one."""
        with open(self._fd, "rb", buffering=_READ_BYTES, closefd=False) as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                # The file is new, or its run was killed while writing the header.
                return
            self._reset_index(self._parse_header(first, expected))
            self._size_bytes = len(first)
            for record in file:
                if not record.endswith(b"\n"):
                    break
                self._size_bytes += len(record)
                self.damaged_records += not self._index_if_valid(record)
        os.ftruncate(self._fd, self._size_bytes)

    def _parse_header(self, first: bytes, expected: JournalHeader | None) -> JournalHeader:
        """Return the header in a journal's first line. Raises JournalDamaged."""
        try:
            header = JournalHeader(**orjson.loads(first))
            is_usable = header.format == _FORMAT and header.lines >= 0
        except (TypeError, ValueError):
            is_usable = False
        if expected is not None and not (
            is_usable and (header.digest, header.lines) == (expected.digest, expected.lines)
        ):
            self.damaged_records += 1
            return expected
        if not is_usable:
            raise JournalDamaged(
                f"{self.path} is not the journal of a batch: move it away or use --force"
            )
        return header

    def _index_if_valid(self, record: bytes) -> bool:
        """Index the record that ends at the current end; return whether it is undamaged."""
        number, ok, checksum, answer = (*record[:-1].split(b" ", 3), b"", b"", b"")[:4]
        if not (number.isdigit() and len(number) <= len(str(self.lines)) and ok in (b"0", b"1")):
            return False
        if checksum != b"%08x" % _checksum(b"%b %b" % (number, ok), answer):
            return False
        line = int(number)
        if not (1 <= line <= self.lines and self.is_missing(line)):
            return False
        self._index_record(line, len(answer) + 1, ok=ok == b"1")
        return True

    def _index_record(self, number: int, length: int, *, ok: bool) -> None:
        """Add the record that ends at the current end of the file to the index."""
        self.done += 1
        self.failed += not ok
        self._offsets[number - 1] = self._size_bytes - length
        self._lengths[number - 1] = length
        self._ok[number - 1] = ok

    def _write(self, record: bytes) -> None:
        try:
            written = os.write(self._fd, record)
            while written < len(record):
                written += os.write(self._fd, record[written:])
        except OSError:
            # On a full disk, a part may have been written: the next record must not follow it.
            os.ftruncate(self._fd, self._size_bytes)
            raise
        self._size_bytes += len(record)
        self._needs_sync = True

    def _sync_forever(self) -> None:
        while not self._closed.wait(_SYNC_INTERVAL_S):
            if self._needs_sync:
                self._needs_sync = False
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    # The next `add` raises it, because later records would not be durable.
                    self._sync_error = error
                    return


def _checksum(head: bytes, answer: bytes) -> int:
    """Return the checksum of a record, which covers all of it."""
    return zlib.crc32(answer, zlib.crc32(head))

"""What has been answered so far, on disk as it is answered."""

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

from jobs.sqlite.private_files import open_private, sync_folder

SUFFIX = ".partial"
_SYNC_INTERVAL_S = 1.0
_READ_BYTES = 1 << 20
# In format 1 the checksum covers the answer alone, in format 2 the whole record.
_FORMAT = 2
_FORMATS = (1, 2)


class JournalError(Exception):
    """The journal cannot be used; the message is one sentence that says what to do."""


class JournalDamaged(JournalError):
    """The file is not a journal, or its first line is damaged."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """Which input a journal has the answers of."""

    digest: str
    lines: int
    format: int = _FORMAT


class BatchJournal:
    """An append-only file of answers beside the output it will become.

    A record is `<line> <1, or 0 for failed> <CRC-32> <answer>` and an end of line. Records are in
    the order in which the lines were answered. A line with a record is never answered again, even
    if lines before it have no answer yet. Each record is with the operating system when `add`
    returns, so a killed process loses nothing. Once a second records are synced to the disk, so a
    power failure costs the answers of the last second.

    Opening a journal cuts off a last record that is incomplete. Any other damaged record stays in
    the file and is ignored: its line counts as unanswered, and the records after it are used. The
    file is readable by its owner only, because it contains answers.

    Memory is 17 bytes for each line of the input. Owned by one thread; one more syncs.
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

        Where the caller knows the input without the journal, `expected` stands in for a first line
        that is damaged. `reserve` is called with the file's size in bytes before an answer is
        written; if it raises, the answer is not written. Raises JournalError.
        """
        self.path = path
        self._reserve = reserve
        self.header: JournalHeader | None = None
        self.done = 0
        self.failed = 0
        # Records that were ignored when the journal was opened.
        self.damaged = 0
        # Of each line's answer: where it is, how long (0 for none), whether it is one.
        self._offsets: array[int] = array("Q")
        self._lengths: array[int] = array("L")
        self._ok = bytearray()
        self._unsynced = False
        self._unsyncable: OSError | None = None
        self._end = 0
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
        """How many lines the input has."""
        return len(self._ok)

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._end

    @property
    def lost(self) -> int:
        """How many lines have no answer any more because their records are damaged, at most."""
        return min(self.damaged, self.lines - self.done)

    def begin(self, header: JournalHeader) -> None:
        """Start over for an input, discarding all records. Raises OSError."""
        os.ftruncate(self._fd, 0)
        self._end = 0
        self.damaged = 0
        self._prepare(header)
        self._write(orjson.dumps(asdict(header)) + b"\n")
        # A power failure must not take the file with the records that are synced later.
        sync_folder(self.path.parent)

    def add(self, number: int, answer: bytes, *, ok: bool) -> None:
        """Write the answer to a line.

        Raises OSError and what `reserve` raises, and then the record is not there.
        """
        if self._unsyncable is not None:
            raise self._unsyncable
        checksum = self._checksum(b"%d %d" % (number, ok), answer)
        record = b"%d %d %08x %b\n" % (number, ok, checksum, answer)
        self._reserve(self._end + len(record))
        self._write(record)
        self._note(number, len(answer) + 1, ok=ok)

    def missing(self, number: int) -> bool:
        """Whether a line has no answer yet."""
        return not self._lengths[number - 1]

    def answers(self, *, ok: bool, ordered: bool = True) -> Iterator[bytes]:
        """Yield the answers of one kind with their ends, by their lines or as they came."""
        offsets, lengths = self._offsets, self._lengths
        places: Iterable[int] = range(len(offsets))
        if not ordered:
            places = sorted(places, key=offsets.__getitem__)
        for place in places:
            if lengths[place] and self._ok[place] == ok:
                yield os.pread(self._fd, lengths[place], offsets[place])

    def remove(self) -> None:
        """Leave nothing for a next run."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file, synced. Raises OSError."""
        self._closed.set()
        self._syncer.join()
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _prepare(self, header: JournalHeader) -> None:
        self.header = header
        self.done = self.failed = 0
        self._offsets = array("Q", [0]) * header.lines
        self._lengths = array("L", [0]) * header.lines
        self._ok = bytearray(header.lines)

    def _recover(self, expected: JournalHeader | None) -> None:
        """Read the records of an earlier run, and cut off an incomplete last one."""
        with open(self._fd, "rb", buffering=_READ_BYTES, closefd=False) as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                # Nothing, or a run that ended in its first moment.
                return
            self._prepare(self._header(first, expected))
            self._end = len(first)
            for record in file:
                if not record.endswith(b"\n"):
                    break
                self._end += len(record)
                self.damaged += not self._read(record)
        os.ftruncate(self._fd, self._end)

    def _header(self, first: bytes, expected: JournalHeader | None) -> JournalHeader:
        """Return the header in a journal's first line. Raises JournalDamaged."""
        try:
            header = JournalHeader(**orjson.loads(first))
            is_usable = header.format in _FORMATS and header.lines >= 0
        except (TypeError, ValueError):
            is_usable = False
        if expected is not None and not (
            is_usable and (header.digest, header.lines) == (expected.digest, expected.lines)
        ):
            self.damaged += 1
            return expected
        if not is_usable:
            raise JournalDamaged(
                f"{self.path} is not the journal of a batch: move it away or use --force"
            )
        return header

    def _read(self, record: bytes) -> bool:
        """Take over the record that ends at the current end; return whether it is undamaged."""
        number, ok, checksum, answer = (*record[:-1].split(b" ", 3), b"", b"", b"")[:4]
        if not (number.isdigit() and len(number) <= len(str(self.lines)) and ok in (b"0", b"1")):
            return False
        if checksum != b"%08x" % self._checksum(b"%b %b" % (number, ok), answer):
            return False
        line = int(number)
        # The same line twice: only in format 1, whose checksum does not cover the number.
        if not (1 <= line <= self.lines and self.missing(line)):
            return False
        self._note(line, len(answer) + 1, ok=ok == b"1")
        return True

    def _checksum(self, head: bytes, answer: bytes) -> int:
        is_covered = self.header is not None and self.header.format > 1
        return zlib.crc32(answer, zlib.crc32(head) if is_covered else 0)

    def _note(self, number: int, length: int, *, ok: bool) -> None:
        """Remember the record that ends at the current end of the file."""
        self.done += 1
        self.failed += not ok
        self._offsets[number - 1] = self._end - length
        self._lengths[number - 1] = length
        self._ok[number - 1] = ok

    def _write(self, record: bytes) -> None:
        try:
            written = os.write(self._fd, record)
            while written < len(record):
                written += os.write(self._fd, record[written:])
        except OSError:
            # On a full disk a part may be there: the next record must not begin behind it.
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(record)
        self._unsynced = True

    def _sync_forever(self) -> None:
        while not self._closed.wait(_SYNC_INTERVAL_S):
            if self._unsynced:
                self._unsynced = False
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    # Told to whoever adds next: nothing is safe that the disk has not taken.
                    self._unsyncable = error
                    return

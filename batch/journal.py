"""What has been answered so far, on disk as it is answered."""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

SUFFIX = ".partial"
_SYNC_S = 1.0
_READ_BYTES = 1 << 20
_FORMAT = 1


class JournalError(Exception):
    """The journal cannot be used; the message is one sentence that says what to do."""


class JournalDamaged(JournalError):
    """What is in the file is no journal, or no longer one all through."""


@dataclass(frozen=True, slots=True)
class Header:
    """Which input a journal has the answers of."""

    digest: str
    lines: int
    format: int = _FORMAT


class Journal:
    """An append-only file of answers beside the output it will become.

    A record is `<line> <0 or 1 for failed> <CRC-32> <answer>` and an end of line. They come in the
    order in which they are answered, whatever order the output is to have: what has been answered
    once is never asked again, not even what waits for a slower line before it. Each record is with
    the operating system when `add` returns, so a kill loses nothing; once a second they are synced
    to the disk, so a power cut costs that second. The last record may be half there afterwards: it
    is cut off when the journal is opened again.

    Memory is 17 bytes for each line of the input. Owned by one thread; one more syncs.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open a journal, or begin one; `fresh` drops what is there. Raises JournalError."""
        self.path = path
        self.header: Header | None = None
        self.done = 0
        self.failed = 0
        # Of each line's answer: where it is, how long (0 for none), whether it is one.
        self._offsets: array[int] = array("Q")
        self._lengths: array[int] = array("L")
        self._ok = bytearray()
        self._unsynced = False
        self._unsyncable: OSError | None = None
        self._end = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise JournalError(f"another run is using {path}") from None
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}") from None
        try:
            if fresh:
                os.ftruncate(self._fd, 0)
            self._recover()
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

    def begin(self, header: Header) -> None:
        """Start over for an input, forgetting what was there. Raises OSError."""
        os.ftruncate(self._fd, 0)
        self._end = 0
        self._prepare(header)
        self._write(orjson.dumps(asdict(header)) + b"\n")

    def add(self, number: int, answer: bytes, *, ok: bool) -> None:
        """Write the answer to a line. Raises OSError, and then the record is not there."""
        if self._unsyncable is not None:
            raise self._unsyncable
        self._write(b"%d %d %08x %b\n" % (number, ok, zlib.crc32(answer), answer))
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

    def _prepare(self, header: Header) -> None:
        self.header = header
        self.done = self.failed = 0
        self._offsets = array("Q", [0]) * header.lines
        self._lengths = array("L", [0]) * header.lines
        self._ok = bytearray(header.lines)

    def _recover(self) -> None:
        """Read what an earlier run has left, and cut off what it did not get to write."""
        with open(self._fd, "rb", buffering=_READ_BYTES, closefd=False) as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                # Nothing, or a run that ended in its first moment.
                return
            try:
                self._prepare(Header(**orjson.loads(first)))
            except (TypeError, ValueError):
                raise JournalDamaged(
                    f"{self.path} is not the journal of a batch: move it away or use --force"
                ) from None
            self._end = len(first)
            for record in file:
                if not self._read(record):
                    break
            rest = file.read(1)
        if rest:
            raise JournalDamaged(
                f"{self.path} is damaged at byte {self._end}: move it away or use --force"
            )
        os.ftruncate(self._fd, self._end)

    def _read(self, record: bytes) -> bool:
        number, ok, checksum, answer = (*record.split(b" ", 3), b"", b"", b"")[:4]
        whole = answer.endswith(b"\n") and checksum == b"%08x" % zlib.crc32(answer[:-1])
        if not (whole and number.isdigit() and 1 <= int(number) <= len(self._ok)):
            return False
        self._end += len(record)
        self._note(int(number), len(answer), ok=ok == b"1")
        return True

    def _note(self, number: int, length: int, *, ok: bool) -> None:
        """Remember the record that ends where the file does now."""
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
        while not self._closed.wait(_SYNC_S):
            if self._unsynced:
                self._unsynced = False
                try:
                    os.fsync(self._fd)
                except OSError as error:
                    # Told to whoever adds next: nothing is safe that the disk has not taken.
                    self._unsyncable = error
                    return

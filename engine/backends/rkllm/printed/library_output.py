"""The output of the library during a load or a run: the reason of a failure, which 0 may hide."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
import subprocess
import sys
import tempfile
import termios
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

from common.child_processes import OWN_PROCESS_VARIABLE
from engine.backends.rkllm.board import driver
from engine.errors import BackendFailed

logger = logging.getLogger(__name__)

# How many lines are kept at the start, where the library reports itself, and again at the end.
_MAX_LINES = 500
_MAX_ERROR_LINES = 50
_MAX_REASON_LINES = 3
_MAX_LINE_CHARS = 300
_COPY_TIMEOUT_S = 5.0
# Lines of level "error", and sentences that are printed without a level.
_ERROR_LINE = re.compile(
    r"^\s*E[ /]+\S*(?:rkllm|rknn)|rknn_init fail|invalid rknn llm model|query platform error"
    r"|must be less than",
    re.IGNORECASE,
)


class CapturedOutput:
    """The lines that were printed, when `LibraryOutput.capture` has ended.

    If they are needed, their last bytes are waited for, which takes some milliseconds. Otherwise
    they are only read if there are any. Of many lines, the first and the last ones are kept, and
    the errors between them.
    """

    def __init__(self) -> None:
        self.is_needed = True
        self.lines: tuple[str, ...] = ()
        self._copier: _Copier | None = None
        self._start = 0

    def follow(self, copier: _Copier, start: int) -> None:
        """Let `has_output` ask this process, whose file had `start` bytes before the capture."""
        self._copier, self._start = copier, start

    def has_output(self) -> bool:
        """Return whether anything was printed so far. Thread-safe while the capture lasts."""
        copier = self._copier
        return copier is not None and copier.has_more_than(self._start)

    @property
    def errors(self) -> list[str]:
        """The lines that report an error."""
        return [line for line in self.lines if _ERROR_LINE.search(line)]

    @property
    def reason_lines(self) -> list[str]:
        """The last lines of error, or else the last lines."""
        return _last_lines(self.errors or self.lines)

    @property
    def reason(self) -> str:
        """The reason as one line; empty if the library printed nothing."""
        return " | ".join(self.reason_lines)

    @property
    def error(self) -> str:
        """The last lines of error as one; empty without any."""
        return " | ".join(_last_lines(self.errors))


def printed_error(words: str) -> BackendFailed:
    """Return the error of a run that reported success and printed an error."""
    return BackendFailed(
        f"the RKLLM runtime reported success, but printed an error during the run: {words}. "
        f"{driver.describe_driver()}"
    )


class LibraryOutput:
    """Copies what this process prints during a load or a run, by any library and to both streams.

    Another process, `tee`, passes the output on: if the library ends this one, its last words are
    still in the log. Without that program nothing is captured. Only one thread of a process can
    capture at a time; for another one, as on a server whose models run on its threads, the output
    is empty.
    """

    _capture_lock = threading.Lock()

    def __init__(self) -> None:
        self._copier: _Copier | None = None
        self._is_closed = False

    @contextmanager
    def capture_run(self) -> Iterator[CapturedOutput]:
        """Copy the output of a run; nothing on a thread of the server, whose output is its own."""
        if OWN_PROCESS_VARIABLE not in os.environ:
            yield CapturedOutput()
            return
        with self.capture() as output:
            yield output

    @contextmanager
    def capture(self) -> Iterator[CapturedOutput]:
        """Copy the output while the block runs."""
        output = CapturedOutput()
        if not self._capture_lock.acquire(blocking=False):
            yield output
            return
        try:
            copier = self._copier = self._copier or self._start()
            if copier is None:
                yield output
                return
            start = copier.size()
            output.follow(copier, start)
            _flush()
            originals = [(stream, os.dup(stream)) for stream in (1, 2)]
            try:
                for stream, _ in originals:
                    os.dup2(copier.pipe, stream)
                yield output
            finally:
                _flush()
                for stream, original in originals:
                    os.dup2(original, stream)
                    os.close(original)
                if output.is_needed or output.has_output():
                    # Only its end shows that it has copied everything.
                    copier.end()
                    output.lines = copier.read_lines(start)
                    self._drop_copier()
        finally:
            self._capture_lock.release()

    def close(self) -> None:
        """End `tee`; later output is not captured."""
        self._is_closed = True
        self._drop_copier()

    def _start(self) -> _Copier | None:
        if self._is_closed:
            return None
        try:
            return _Copier()
        except OSError as error:
            logger.warning("what the library prints is not read, there is no `tee`: %s", error)
            self._is_closed = True
            return None

    def _drop_copier(self) -> None:
        copier, self._copier = self._copier, None
        if copier is not None:
            copier.close()


class _Copier:
    """Runs `tee`, which copies its input to stderr and to a file; `pipe` is that input."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        self._file = tempfile.TemporaryFile()
        try:
            self._tee = subprocess.Popen(
                [which("tee") or "tee", "-i", "-a", f"/dev/fd/{self._file.fileno()}"],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(self._file.fileno(),),
            )
        except OSError:
            self._file.close()
            raise
        assert self._tee.stdin is not None  # noqa: S101 - opened as a pipe above
        self._stdin = self._tee.stdin
        self.pipe = self._stdin.fileno()

    def size(self) -> int:
        """Return how many bytes the file has."""
        return self._file.seek(0, os.SEEK_END)

    def read_lines(self, start: int) -> tuple[str, ...]:
        """Return the lines of the file after `start`: the first, the errors and the last of many.

        With RKLLM_LOG_LEVEL=2, hundreds of lines may follow an error.
        """
        first: list[str] = []
        errors: deque[str] = deque(maxlen=_MAX_ERROR_LINES)
        last: deque[str] = deque(maxlen=_MAX_LINES)
        self._file.seek(start)
        for data in self._file:
            for line in data.decode("utf-8", "replace").splitlines():
                if not (line := line.strip()):
                    continue
                if len(first) < _MAX_LINES:
                    first.append(line)
                    continue
                if len(last) == _MAX_LINES and _ERROR_LINE.search(last[0]):
                    errors.append(last[0])
                last.append(line)
        return (*first, *errors, *last)

    def has_more_than(self, start: int) -> bool:
        """Return whether the file has more than `start` bytes, or soon will.

        The order counts: bytes that `tee` has taken from the pipe are in the file only when it
        waits for more.
        """
        try:
            return self._has_unread() or not self._is_waiting() or self.size() > start
        except (OSError, ValueError):
            # The capture has just ended.
            return True

    def _has_unread(self) -> bool:
        count = fcntl.ioctl(self.pipe, termios.FIONREAD, bytes(4))
        return count != bytes(4)

    def _is_waiting(self) -> bool:
        """Return whether `tee` is blocked in a call whose first argument is its input, 0.

        Where the kernel hides this (proc_pid_syscall(5)), it never is, and each run waits for it.
        """
        try:
            words = Path(f"/proc/{self._tee.pid}/syscall").read_text(encoding="ascii").split()
        except OSError:
            return False
        return words[1:2] == ["0x0"]

    def end(self) -> None:
        """Let it copy everything, and wait for its end."""
        self._stdin.close()
        try:
            self._tee.wait(_COPY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Something that the library started still has the pipe.
            self._tee.kill()
            self._tee.wait()

    def close(self) -> None:
        """End it, and remove the file."""
        self.end()
        self._file.close()


def _last_lines(lines: Sequence[str]) -> list[str]:
    return [line[:_MAX_LINE_CHARS] for line in lines[-_MAX_REASON_LINES:]]


def _flush() -> None:
    """Write what Python and the C library hold back; a pipe makes both hold back more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)

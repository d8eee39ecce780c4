"""The output of the library during a load: the reason of a failure, which 0 may hide."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shutil import which
from typing import IO

logger = logging.getLogger(__name__)

_MAX_BYTES = 64_000
_MAX_REASON_LINES = 3
_MAX_LINE_CHARS = 300
_COPY_TIMEOUT_S = 5.0
# Lines of level "error", and sentences that are printed without a level.
_ERROR_LINE = re.compile(
    r"^\s*E[ /]+\S*(?:rkllm|rknn)|rknn_init fail|invalid rknn llm model|query platform error"
    r"|must be less than",
    re.IGNORECASE,
)


class LoadOutput:
    """The lines that were printed; complete when `capture_output` has ended."""

    def __init__(self) -> None:
        self.lines: tuple[str, ...] = ()

    @property
    def errors(self) -> list[str]:
        """The lines that report an error."""
        return [line for line in self.lines if _ERROR_LINE.search(line)]

    @property
    def reason_lines(self) -> list[str]:
        """The last lines of error, or else the last lines."""
        last_lines = (self.errors or [*self.lines])[-_MAX_REASON_LINES:]
        return [line[:_MAX_LINE_CHARS] for line in last_lines]

    @property
    def reason(self) -> str:
        """The lines of the reason as one; empty if there are none."""
        return " | ".join(self.reason_lines)


@contextmanager
def capture_output() -> Iterator[LoadOutput]:
    """Copy what this process prints, by any library and to both streams, while it goes on.

    Another process, `tee`, passes it on: if the library ends this one, its last words are still in
    the log. Without that program nothing is captured. One thread of the process may use this at a
    time.
    """
    output = LoadOutput()
    _flush()
    with tempfile.TemporaryFile() as copy:
        try:
            tee = subprocess.Popen(
                [which("tee") or "tee", "-i", "-a", f"/dev/fd/{copy.fileno()}"],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(copy.fileno(),),
            )
        except OSError as error:
            logger.warning("what the library prints is not read, there is no `tee`: %s", error)
            yield output
            return
        assert tee.stdin is not None  # noqa: S101 - opened as a pipe above
        originals = [(stream, os.dup(stream)) for stream in (1, 2)]
        try:
            for stream, _ in originals:
                os.dup2(tee.stdin.fileno(), stream)
            yield output
        finally:
            _flush()
            for stream, original in originals:
                os.dup2(original, stream)
                os.close(original)
            tee.stdin.close()
            _wait(tee)
            output.lines = _read_lines(copy)


def _flush() -> None:
    """Write what Python and the C library hold back; a pipe makes both hold back more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _wait(tee: subprocess.Popen[bytes]) -> None:
    try:
        tee.wait(_COPY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Something that the library started still has the pipe.
        tee.kill()
        tee.wait()


def _read_lines(copy: IO[bytes]) -> tuple[str, ...]:
    size = copy.seek(0, os.SEEK_END)
    copy.seek(max(0, size - _MAX_BYTES))
    text = copy.read().decode("utf-8", "replace")
    return tuple(line.strip() for line in text.splitlines() if line.strip())

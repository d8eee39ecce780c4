"""Many streams read at once by a client in C, which costs the server's cores next to nothing.

A client in Python runs code for each read, on the cores of the server that it measures, and with
hundreds of streams most reads are one event. `reader.c` does a system call for it; it keeps the
bytes of each read with the time, as `client` does, and here they are taken apart afterwards.
"""

from __future__ import annotations

import struct
import subprocess
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client import Reply, WrongAnswer, request_bytes
from tests.fake_rkllm import run as compile_c

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2")
_TOLD = struct.Struct("=qqqqqq")
_LIMIT_S = 330.0


@dataclass(frozen=True, slots=True)
class Read:
    """One stream as it was read, with the nanoseconds of processor time that the server had used.

    `cpu_before` is while the server was silent, before any stream's first bytes; `cpu_first` is at
    this one's first bytes, `cpu_end` at its end.
    """

    reply: Reply
    cpu_before: int
    cpu_first: int
    cpu_end: int

    @property
    def first(self) -> int:
        """When its first bytes came."""
        return self.reply.times[0]

    @property
    def end(self) -> int:
        """When its last bytes came."""
        return self.reply.times[-1]


class Reader:
    """The compiled client; lives as long as its folder."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "reader"
        compile_c(*_FLAGS, str(_SOURCE), "-o", str(self._program))

    def ask(
        self, port: int, server: int, path: str, body: Mapping[str, Any], streams: int
    ) -> list[Read]:
        """Ask the same on so many connections at once; `server` is the process that answers.

        Raises:
            WrongAnswer: a connection broke or was not answered.
            subprocess.TimeoutExpired: they were not answered in time.
        """
        done = subprocess.run(
            [str(self._program), str(port), str(streams), str(server)],
            input=request_bytes(path, body),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise WrongAnswer(f"the reader ended with {done.returncode}: {done.stderr.decode()}")
        return list(_reads(done.stdout))


def _reads(told: bytes) -> Iterator[Read]:
    at = 0
    while at < len(told):
        asked, cpu_before, cpu_first, cpu_end, count, size = _TOLD.unpack_from(told, at)
        at += _TOLD.size
        if not count:
            raise WrongAnswer("the server closed the connection without an answer")
        pairs = array("q", told[at : at + 16 * count])
        at += 16 * count
        reply = Reply(asked, told[at : at + size], list(pairs[::2]), list(pairs[1::2]))
        at += size
        yield Read(reply, cpu_before, cpu_first, cpu_end)

"""Reads many streams concurrently with a client in C, which needs almost no processor time.

A client in Python runs code for each read, on the cores of the server that it measures, and with
hundreds of streams most reads are one event. `reader.c` makes one system call per read; it stores
the bytes with the time, like `client`, and they are parsed afterwards.
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
_RECORD = struct.Struct("=qqqqqq")
_LIMIT_S = 330.0


@dataclass(frozen=True, slots=True)
class Read:
    """One stream with its times, and the processor time of the server in nanoseconds.

    `cpu_before` is taken while the server is silent, before the first bytes of any stream,
    `cpu_first` at the first bytes of this one, `cpu_end` at its end.
    """

    reply: Reply
    cpu_before: int
    cpu_first: int
    cpu_end: int

    @property
    def first(self) -> int:
        """When its first bytes were read."""
        return self.reply.times[0]

    @property
    def end(self) -> int:
        """When its last bytes were read."""
        return self.reply.times[-1]


class Reader:
    """The compiled client; it exists as long as its folder."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "reader"
        compile_c(*_FLAGS, str(_SOURCE), "-o", str(self._program))

    def ask(
        self, port: int, server: int, path: str, body: Mapping[str, Any], streams: int
    ) -> list[Read]:
        """Send the same request on several connections; `server` is the process that responds.

        Raises:
            WrongAnswer: a connection broke or got no response.
            subprocess.TimeoutExpired: the responses were not complete in time.
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


def _reads(raw: bytes) -> Iterator[Read]:
    at = 0
    while at < len(raw):
        sent_ns, cpu_before, cpu_first, cpu_end, count, size = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        if not count:
            raise WrongAnswer("the server closed the connection without an answer")
        pairs = array("q", raw[at : at + 16 * count])
        at += 16 * count
        reply = Reply(sent_ns, raw[at : at + size], list(pairs[::2]), list(pairs[1::2]))
        at += size
        yield Read(reply, cpu_before, cpu_first, cpu_end)

"""A minimal HTTP client, which sends requests and records the time of each read.

All comparisons use it for both sides. A full client parses while it reads, so its own time would be
measured. This one stores the bytes of each read with the time, and parses them after the last read.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.stamping import STAMP

HOST = "127.0.0.1"
_EVENT = b"data: "
_LAST_EVENT = b"data: [DONE]"
_FIRST_TEXT = re.compile(rb'"(?:text|content)": ?"[^"]')


class WrongAnswer(Exception):
    """A server returned a wrong answer, so that a measurement would be invalid."""


@dataclass(frozen=True)
class Reply:
    """A response as it was received; times are nanoseconds of CLOCK_MONOTONIC.

    `times[n]` is when the read that ended at byte `ends[n]` returned.
    """

    sent_ns: int
    raw: bytes
    times: list[int]
    ends: list[int]

    @cached_property
    def body(self) -> bytes:
        """The response body. Raises WrongAnswer if the status is not 200."""
        head, _, rest = self.raw.partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise WrongAnswer(f"status {status}: {rest[:300]!r}")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        parts: list[bytes] = []
        start = 0
        while True:
            end = rest.find(b"\r\n", start)
            length = int(rest[start:end], 16) if end > start else 0
            if not length:
                return b"".join(parts)
            parts.append(rest[end + 2 : end + 2 + length])
            start = end + 2 + length + 2

    @property
    def seconds(self) -> float:
        """Time from the request to the last byte."""
        return (self.times[-1] - self.sent_ns) / 1e9

    @property
    def events(self) -> int:
        """Number of server-sent events without `[DONE]`."""
        return self.raw.count(_EVENT) - self.raw.count(_LAST_EVENT)

    @property
    def first_event_ms(self) -> float:
        """Time from the request to the first event."""
        at = self.raw.find(_EVENT)
        if at < 0:
            raise WrongAnswer(f"no event came: {self.raw[:300]!r}")
        return (self._arrival(at) - self.sent_ns) / 1e6

    @property
    def first_text_ms(self) -> float:
        """Time from the request to the first event with text; the role event of a chat has none."""
        match = _FIRST_TEXT.search(self.raw)
        if match is None:
            raise WrongAnswer(f"no text came: {self.raw[:300]!r}")
        return (self._arrival(match.end()) - self.sent_ns) / 1e6

    def stamped(self) -> list[tuple[int, int]]:
        """Return for each stamped token when it was produced and when it was received."""
        return [(int(match[1]), self._arrival(match.end())) for match in STAMP.finditer(self.raw)]

    def latencies_ms(self) -> list[float]:
        """Return the latency of each stamped token from the producer to the client."""
        return [(arrived - produced) / 1e6 for produced, arrived in self.stamped()]

    def json(self) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        value: dict[str, Any] = json.loads(self.body)
        return value

    def chunks(self) -> list[dict[str, Any]]:
        """Return the JSON of the events. Raises WrongAnswer if the stream is incomplete."""
        return list(self._chunks())

    def _chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON of the events one by one, because a burst has too many for memory."""
        lines = [line for line in self.body.split(b"\n") if line.startswith(_EVENT)]
        if not lines or lines[-1] != _LAST_EVENT:
            raise WrongAnswer(f"the stream did not end with [DONE] but with {lines[-1:]}")
        for line in lines[:-1]:
            yield json.loads(line[len(_EVENT) :])

    def text(self) -> str:
        """Return the text of the stream of a completion or a chat."""
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for chunk in self._chunks()
            for choice in chunk["choices"]
        )

    def _arrival(self, offset: int) -> int:
        return self.times[bisect_left(self.ends, offset)]


class _Reader(asyncio.Protocol):
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.times: list[int] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.times.append(time.monotonic_ns())
        self.parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def request_bytes(path: str, body: Mapping[str, Any] | None, accept: str = "*/*") -> bytes:
    """Return the bytes of a request: a GET, or a POST if there is a body."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
        f"Accept: {accept}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + content


async def ask(
    port: int,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    accept: str = "*/*",
    timeout_s: float = 60,
) -> Reply:
    """Send a request to a local server; the time starts when the connection is established.

    Raises:
        TimeoutError: the response was not complete in time.
        OSError: no server is listening.
        WrongAnswer: the server closed the connection without a response.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        transport, reader = await loop.create_connection(_Reader, HOST, port)
        try:
            sent_ns = time.monotonic_ns()
            transport.write(request_bytes(path, body, accept))
            await reader.closed
        finally:
            transport.abort()
    if not reader.parts:
        raise WrongAnswer("the server closed the connection without an answer")
    ends, total = [], 0
    for part in reader.parts:
        total += len(part)
        ends.append(total)
    return Reply(sent_ns, b"".join(reader.parts), reader.times, ends)


async def ask_all(
    port: int, path: str, bodies: list[dict[str, Any]], *, timeout_s: float = 120
) -> list[Reply]:
    """Send several requests concurrently, each on its own connection."""
    return list(
        await asyncio.gather(*(ask(port, path, body, timeout_s=timeout_s) for body in bodies))
    )

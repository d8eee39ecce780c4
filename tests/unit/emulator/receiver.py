"""A server on loopback that receives the posts of webhooks and sends chosen answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tests.unit.emulator.events import DEADLINE_S
from tests.waiting import wait_until

_LENGTH = re.compile(r"^content-length: (\d+)", re.I | re.M)


class Receiver:
    """Sends the next answer to each post: a status, or a str as it is; 200 after the last one.

    After a str that is not a complete answer the client waits.
    """

    def __init__(self, port: int, answers: Sequence[int | str]) -> None:
        self.url = f"http://127.0.0.1:{port}/told"
        self.answers = list(answers)
        self.posts: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.open = self.max_open = 0
        self._changed = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = _LENGTH.search(head)
            assert length
            self.posts.append(orjson.loads(await reader.readexactly(int(length[1]))))
            self.heads.append(head)
            self._changed.set()
            answer = self.answers.pop(0) if self.answers else 200
            if isinstance(answer, int):
                answer = f"HTTP/1.1 {answer} Said\r\ncontent-length: 0\r\n\r\n"
            writer.write(answer.encode())
            # Wait until the client closes the connection.
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def got(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many posts."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.posts) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.posts


@asynccontextmanager
async def receiving(*answers: int | str, port: int = 0) -> AsyncIterator[Receiver]:
    """Receive on a free port, or on one from `free_port`."""
    server = await asyncio.start_server(lambda r, w: receiver.take(r, w), "127.0.0.1", port)
    receiver = Receiver(server.sockets[0].getsockname()[1], answers)
    try:
        yield receiver
    finally:
        server.close()
        for writer in receiver.writers:
            writer.close()
        await wait_until(lambda: not receiver.open, DEADLINE_S, gap_s=0)

"""A server with OpenAI's API for the tests of the openai engine, whose bytes each test chooses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

# Writes the answer to a request with a body.
Answer = Callable[["Exchange"], Awaitable[None]]


@dataclass(slots=True)
class Exchange:
    """One request and the connection for its answer."""

    path: str
    headers: Mapping[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send_json(self, value: Any, status: str = "200 OK") -> None:
        content = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        await self.writer.drain()

    async def open_stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await self.writer.drain()

    async def send_event(self, value: Any) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        content = f"data: {data}\n\n".encode()
        self.writer.write(b"%x\r\n%b\r\n" % (len(content), content))
        await self.writer.drain()

    async def send_text(self, text: str, reason: str | None = None, **more: Any) -> None:
        key = "delta" if self.path.endswith("chat/completions") else "text"
        content: Any = {"content": text} if key == "delta" else text
        choice = {"index": 0, key: content, "finish_reason": reason}
        await self.send_event({"choices": [choice], **more})

    async def end_stream(self) -> None:
        await self.send_event("[DONE]")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def wait_closed(self) -> None:
        """Wait until the client has closed the connection."""
        async with asyncio.timeout(30):
            await self.reader.read()


async def answer_hello(exchange: Exchange) -> None:
    await exchange.open_stream()
    for text in ("He", "llo"):
        await exchange.send_text(text)
    await exchange.send_text("", "stop")
    await exchange.send_event(
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    )
    await exchange.end_stream()


@dataclass(slots=True)
class Upstream:
    """A running server: its address, its requests for answers, and how it answers."""

    answer: Answer = answer_hello
    models: Sequence[Mapping[str, Any]] = ({"id": "m", "owned_by": "library"},)
    models_status: str = "200 OK"
    url: str = ""
    requests: list[Exchange] = field(default_factory=list)
    connections: int = 0
    model_requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (exchange := await _read_request(reader, writer)) is not None:
                if exchange.path == "/v1/models":
                    self.model_requests += 1
                    await exchange.send_json(
                        {"object": "list", "data": self.models}, self.models_status
                    )
                    continue
                self.requests.append(exchange)
                await self.answer(exchange)
        except ConnectionError:
            # The engine has closed the connection of an aborted run.
            return
        finally:
            writer.close()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Exchange | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    headers = {name.lower(): value for name, value in pairs}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    body = json.loads(content) if content else None
    return Exchange(first.split()[1], headers, body, reader, writer)


@asynccontextmanager
async def run_upstream(upstream: Upstream, port: int = 0) -> AsyncIterator[Upstream]:
    """Serve on a port, and close all connections at the end."""
    tasks: set[asyncio.Task[None]] = set()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(upstream.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield upstream
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The minimum of a server whose runtime is a process. `PORT PARENT_PID MODEL LIBRARY`.

This is not a usable peer: it has one client at a time, no stop strings, no handling of characters
split between tokens, and no usage. The callback writes a token's bytes to a socket pair, and an
event loop sends them to the client as events. The difference of our server to this is our own code;
the difference of this to a single process is the cost of the hop between processes.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop

from benchmarks.client import HOST
from benchmarks.plain_rkllm import PlainRkllm
from benchmarks.streams import PROMPT
from common.process_utils import die_with_parent
from engine.backends.rkllm.abi.structs import LLMCallState

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_READY, _END = b"\1", b"\0"
_READ_BYTES = 65_536


def host(sock: socket.socket, model: Path, library: Path) -> None:
    """Run the runtime: receive a number of tokens, send their bytes."""

    def on_result(result: Any, number: int | None, state: int) -> int:
        if state == _NORMAL:
            sock.send(result.contents.text)
        return 0

    rkllm = PlainRkllm(library, model, on_result)
    sock.send(_READY)
    while order := sock.recv(_READ_BYTES):
        rkllm.run(PROMPT, int(order))
        sock.send(_END)


class Client(asyncio.Protocol):
    """A connection: one request, then a stream until the end."""

    def __init__(self, runtime: socket.socket) -> None:
        self._runtime = runtime
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Respond when the request is complete."""
        self._head += data
        head, end, body = self._head.partition(b"\r\n\r\n")
        match = _LENGTH.search(head)
        if not end or len(body) < int(match[1] if match else 0):
            return
        write = self._transport.write
        if head.startswith(b"GET /health"):
            write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b'{"status": "ok"}')
            self._transport.close()
            return
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        asyncio.get_running_loop().add_reader(self._runtime.fileno(), self._readable)
        self._runtime.send(b"%d" % orjson.loads(body)["max_tokens"])

    def _readable(self) -> None:
        text = self._runtime.recv(_READ_BYTES)
        has_ended = text.endswith(_END)
        if text := text.removesuffix(_END):
            self._transport.write(b'data: {"choices":[{"index":0,"text":"%s"}]}\n\n' % text)
        if has_ended:
            asyncio.get_running_loop().remove_reader(self._runtime.fileno())
            self._transport.write(b"data: [DONE]\n\n")
            self._transport.close()


async def serve(port: int, runtime: socket.socket) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(runtime), HOST, port)
    await server.serve_forever()


def main() -> None:
    """Run the server, or the runtime's process if a descriptor is passed too."""
    port, parent, model, library, *rest = sys.argv[1:]
    die_with_parent(int(parent))
    if rest:
        host(socket.socket(fileno=int(rest[0])), Path(model), Path(library))
        return
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.processes.bare_hop"),
                *(port, str(os.getpid()), model, library, str(theirs.fileno())),
            ],
            pass_fds=[theirs.fileno()],
        )
    if ours.recv(1) != _READY:
        raise RuntimeError("the runtime's process has ended")
    ours.setblocking(False)
    uvloop.run(serve(int(port), ours))


if __name__ == "__main__":
    main()

"""The event loop's end of a real socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import orjson

from engine.hosts.frame_socket import FrameSocket
from engine.hosts.frames import build_decoder, encode
from tests.waiting import run_ready_tasks, wait_until


class Peer:
    """A frame socket, and the other end of its connection."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self.closed_calls = 0
        ours, self.theirs = socket.socketpair()
        self.link = FrameSocket(ours, self._on_message, self._on_closed)

    def _on_message(self, message: Any) -> None:
        self.messages.append(message)
        self.arrived.set()

    def _on_closed(self) -> None:
        self.closed_calls += 1
        self.closed.set()

    def read_slowly(self, count: int) -> list[Any]:
        """Read a few bytes at a time until `count` messages have arrived; blocks."""
        self.theirs.settimeout(20)
        decoder, messages = build_decoder(), list[Any]()
        while len(messages) < count:
            messages += decoder.feed(self.theirs.recv(1009))
        return messages


async def test_messages_are_received_in_order() -> None:
    peer = Peer()
    peer.theirs.sendall(encode(1) + encode(2)[:3])
    async with asyncio.timeout(30):
        await peer.arrived.wait()
    assert peer.messages == [1]
    peer.arrived.clear()
    peer.theirs.sendall(encode(2)[3:])
    async with asyncio.timeout(30):
        await peer.arrived.wait()
    assert peer.messages == [1, 2]
    peer.link.close()
    peer.theirs.close()


async def test_large_writes_to_a_slow_reader_do_not_block_the_loop() -> None:
    peer = Peer()
    sent = ["x" * 700_000, {"tail": list(range(20_000))}, "😀" * 100_000, "end"]
    for message in sent:
        peer.link.send(message)
    assert await asyncio.to_thread(peer.read_slowly, len(sent)) == sent
    # Everything is written, so the loop must not watch for a writable socket any more.
    await wait_until(lambda: not peer.link._unsent)
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    assert selector.get_key(peer.link._sock).data[1] is None
    peer.link.close()
    peer.theirs.close()


async def test_peer_that_closes_is_reported_once() -> None:
    peer = Peer()
    peer.theirs.sendall(encode("last words"))
    peer.theirs.close()
    async with asyncio.timeout(30):
        await peer.closed.wait()
    assert peer.messages == ["last words"]
    peer.link.send("into the void")
    peer.link.close()
    await run_ready_tasks()
    assert peer.closed_calls == 1


async def test_peer_that_has_closed_before_a_write_is_reported_once() -> None:
    peer = Peer()
    peer.theirs.close()
    peer.link.send("x" * 1000)
    peer.link.send("y")
    async with asyncio.timeout(30):
        await peer.closed.wait()
    await run_ready_tasks()
    assert peer.closed_calls == 1


async def test_peer_that_sends_invalid_frames_is_closed() -> None:
    peer = Peer()
    peer.theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with asyncio.timeout(30):
        await peer.closed.wait()
    assert peer.messages == []
    peer.theirs.close()


async def test_close_does_not_call_on_closed() -> None:
    peer = Peer()
    peer.link.close()
    peer.link.close()
    peer.link.send(orjson.loads("[1]"))
    await run_ready_tasks()
    assert peer.closed_calls == 0
    assert peer.theirs.recv(10) == b""
    peer.theirs.close()

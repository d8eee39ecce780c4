"""The server's end of the socket, with and without an event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engine.hosts.child_connection import ChildConnection
from engine.hosts.frames import build_decoder, encode
from tests.waiting import wait_until


class Child:
    """The other end of a connection, and what the connection has passed on."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.frames: list[Any] = []
        self.disconnects = 0
        self.connection = ChildConnection(ours, self.frames.append, self._count_disconnect)

    def _count_disconnect(self) -> None:
        self.disconnects += 1


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.connection.shutdown()
    child.socket.close()


def test_frames_sent_before_there_is_a_loop_are_read_by_the_first_one(child: Child) -> None:
    child.socket.sendall(encode({"messages": []}))

    async def read() -> None:
        assert child.connection.attach()
        assert not child.connection.attach()
        await wait_until(lambda: bool(child.frames))
        child.connection.close()

    asyncio.run(read())
    assert child.frames == [{"messages": []}]


def test_detached_connection_is_read_by_the_next_loop(child: Child) -> None:
    async def read(number: int) -> None:
        child.connection.attach()
        child.socket.sendall(encode({"number": number}))
        await wait_until(lambda: len(child.frames) == number)
        child.connection.detach()

    asyncio.run(read(1))
    asyncio.run(read(2))
    assert child.frames == [{"number": 1}, {"number": 2}]


async def test_message_is_dropped_unless_a_loop_reads(child: Child) -> None:
    child.connection.send({"lost": 1})
    child.connection.attach()
    child.connection.send({"sent": 2})
    await asyncio.sleep(0)
    child.connection.close()
    assert list(build_decoder().feed(child.socket.recv(1000))) == [{"sent": 2}]


async def test_end_of_the_child_is_reported_once_and_not_after_close(child: Child) -> None:
    child.connection.attach()
    child.socket.shutdown(socket.SHUT_RDWR)
    await wait_until(lambda: child.disconnects == 1)
    child.connection.close()
    assert child.disconnects == 1


def test_shutdown_without_a_loop_shows_the_child_the_end(child: Child) -> None:
    child.connection.shutdown()
    assert child.socket.recv(1) == b""

"""The client in C reads streams completely and in order, and measures their times."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from benchmarks.client import HOST, WrongAnswer
from benchmarks.reader import Read, Reader
from tests.ports import free_port

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

STREAMS = 100
BLOCK = b"0123456789" * 1_000


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("reader"))


@asynccontextmanager
async def run_answering_server(answer: Answer) -> AsyncIterator[int]:
    async def one(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        await reading.readuntil(b'"prompt": "words"}')
        await answer(reading, writing)
        writing.close()
        await writing.wait_closed()

    server = await asyncio.start_server(one, HOST, 0, backlog=STREAMS)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(reader: Reader, port: int, streams: int = STREAMS) -> list[Read]:
    body = {"prompt": "words"}
    return await asyncio.to_thread(reader.ask, port, os.getpid(), "/path", body, streams)


async def test_every_stream_is_read_completely_and_in_order(reader: Reader) -> None:
    count = 0

    async def answer(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writing.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for number in range(40):
            writing.write(b"<%d>" % number + BLOCK)
            await writing.drain()

    async with run_answering_server(answer) as port:
        reads = await ask(reader, port)

    assert count == len(reads) == STREAMS
    expected = b"".join(b"<%d>" % number + BLOCK for number in range(40))
    assert {each.reply.body for each in reads} == {expected}


async def test_reads_have_their_times_and_the_servers_processor_time(reader: Reader) -> None:
    second = asyncio.Event()
    waiting = 0

    async def answer(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        nonlocal waiting
        waiting += 1
        writing.write(b"HTTP/1.1 200 OK\r\n\r\n")
        if waiting == 2:
            second.set()
        await second.wait()
        writing.write(b"end")

    async with run_answering_server(answer) as port:
        reads = await ask(reader, port, 2)

    for each in reads:
        reply = each.reply
        assert reply.sent_ns < each.first <= each.end
        assert all(one <= other for one, other in pairwise(reply.times))
        assert reply.ends[-1] == len(reply.raw)
        assert len(reply.times) == len(reply.ends)
        assert 0 < each.cpu_before <= each.cpu_first <= each.cpu_end


async def test_server_that_closes_without_an_answer_is_an_error(reader: Reader) -> None:
    async def answer(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        """Hang up."""

    async with run_answering_server(answer) as port:
        with pytest.raises(WrongAnswer, match="without an answer"):
            await ask(reader, port, 1)


async def test_port_without_a_server_is_an_error(reader: Reader) -> None:
    with pytest.raises(WrongAnswer, match="the reader ended with 1: connect: "):
        await ask(reader, free_port(), 1)

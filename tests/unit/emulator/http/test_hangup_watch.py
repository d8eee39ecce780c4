"""The watch for clients that leave while nothing is read from them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from emulator.http.hangup_watch import HangupWatch
from tests.waiting import run_ready_tasks


@pytest.mark.parametrize("unread", [b"", b"unread data"])
async def test_hangup_watch_calls_back_when_the_other_side_closes(unread: bytes) -> None:
    watch = HangupWatch()
    ours, theirs = socket.socketpair()
    called = asyncio.Event()
    with ours, theirs:
        watch.add(ours.fileno(), called.set)
        theirs.send(unread)
        await run_ready_tasks()
        assert not called.is_set()
        theirs.close()
        await asyncio.wait_for(called.wait(), 30)
        watch.remove(ours.fileno())
    assert watch._epoll is None


async def test_hangup_watch_does_not_call_back_after_remove() -> None:
    watch = HangupWatch()
    first, first_peer = socket.socketpair()
    second, second_peer = socket.socketpair()
    calls: list[str] = []
    called = asyncio.Event()
    with first, first_peer, second, second_peer:
        watch.add(first.fileno(), lambda: calls.append("first"))
        watch.add(second.fileno(), called.set)
        watch.remove(first.fileno())
        first_peer.close()
        second_peer.close()
        await asyncio.wait_for(called.wait(), 30)
        watch.remove(second.fileno())
        watch.remove(second.fileno())
    assert calls == []

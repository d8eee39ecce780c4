"""Work that is worth doing only while its client is there (R31)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from emulator.http.disconnect import (
    ABORT_EXTENSION,
    ClientDisconnected,
    abort_connection,
    wait_disconnected,
    while_connected,
)
from tests.waiting import run_ready_tasks

Connect = Callable[..., Any]


class Work:
    """Work that ends when the test sets its event, and records how it ended."""

    def __init__(self, result: str = "done", error: Exception | None = None) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = False
        self._result = result
        self._error = error

    async def __call__(self) -> str:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self._error is not None:
            raise self._error
        return self._result


pytestmark = pytest.mark.usefixtures("no_tasks_left")


async def read_body(peer: Any) -> None:
    while (await peer.receive())["more_body"]:
        pass


async def test_wait_disconnected_ignores_other_messages(connection: Connect) -> None:
    peer = connection((b"a", b"b"))
    task = asyncio.create_task(wait_disconnected(peer.receive))
    await run_ready_tasks(5)
    assert not task.done()
    peer.left.set()
    await task


async def test_result_is_returned_and_not_disposed(connection: Connect) -> None:
    peer, work, disposed = connection(), Work(), list[str]()
    await read_body(peer)
    work.go.set()
    assert await while_connected(peer.receive, work(), disposed.append) == "done"
    assert disposed == []


async def test_exception_of_the_work_is_raised(connection: Connect) -> None:
    peer, work = connection(), Work(error=ValueError("no"))
    work.go.set()
    with pytest.raises(ValueError, match="no"):
        await while_connected(peer.receive, work())


async def test_work_is_cancelled_when_the_client_disconnects(connection: Connect) -> None:
    peer, work, disposed = connection(), Work(), list[str]()
    task = asyncio.create_task(while_connected(peer.receive, work(), disposed.append))
    await work.started.wait()
    peer.left.set()
    with pytest.raises(ClientDisconnected):
        await task
    assert work.cancelled
    assert disposed == []


async def test_earlier_disconnect_is_detected(connection: Connect) -> None:
    peer, work = connection(), Work()
    peer.left.set()
    with pytest.raises(ClientDisconnected):
        await while_connected(peer.receive, work())


async def test_result_of_work_that_ignores_cancellation_is_disposed(
    connection: Connect,
) -> None:
    peer, disposed = connection(), list[str]()
    started = asyncio.Event()

    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "late"

    task = asyncio.create_task(while_connected(peer.receive, stubborn(), disposed.append))
    await started.wait()
    peer.left.set()
    with pytest.raises(ClientDisconnected):
        await task
    assert disposed == ["late"]


async def test_cancelling_the_caller_cancels_the_work(connection: Connect) -> None:
    peer, work, disposed = connection(), Work(), list[str]()
    task = asyncio.create_task(while_connected(peer.receive, work(), disposed.append))
    await work.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled
    assert disposed == []


@pytest.mark.parametrize("turns", range(8))
async def test_result_is_returned_or_disposed_whenever_the_caller_is_cancelled(
    connection: Connect, turns: int
) -> None:
    peer, work, disposed = connection(), Work(), list[str]()
    task = asyncio.create_task(while_connected(peer.receive, work(), disposed.append))
    await work.started.wait()
    work.go.set()
    await run_ready_tasks(turns)
    task.cancel()
    await asyncio.wait({task})
    returned = [] if task.cancelled() else [task.result()]
    assert returned + disposed == ([] if work.cancelled else ["done"])


@pytest.mark.parametrize("turns", range(4))
async def test_second_cancellation_changes_nothing(connection: Connect, turns: int) -> None:
    peer, work, disposed = connection(), Work(), list[str]()
    task = asyncio.create_task(while_connected(peer.receive, work(), disposed.append))
    await work.started.wait()
    work.go.set()
    await run_ready_tasks(1)
    task.cancel()
    await run_ready_tasks(turns)
    task.cancel()
    await asyncio.wait({task})
    returned = [] if task.cancelled() else [task.result()]
    assert returned + disposed == ["done"]


@pytest.mark.parametrize(("reset", "method"), [(False, "abort"), (True, "reset")])
async def test_abort_connection_waits_for_the_disconnect(
    connection: Connect, reset: bool, method: str
) -> None:
    peer, dropped = connection(), asyncio.Event()
    scope = {"extensions": {ABORT_EXTENSION: {method: dropped.set}}}
    task = asyncio.create_task(abort_connection(scope, peer.receive, reset=reset))
    await dropped.wait()
    assert not task.done()
    peer.left.set()
    assert await task


async def test_abort_connection_returns_false_without_server_support(connection: Connect) -> None:
    assert not await abort_connection({}, connection().receive)

"""Copies as one host: how runs are distributed, and how the others continue when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineClosed, EngineDead, EngineError
from engine.hosts.copies import CopiesHost
from engine.hosts.losses.downtime import Downtime
from engine.runs.stream import TokenStream
from tests.waiting import WAIT_S, run_ready_tasks, wait_until


class FakeHost:
    """A host whose state the test sets, and which records its calls."""

    threaded = False

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.loaded = False
        self.downtime: Downtime | None = None
        self.restarts = 0
        self.runs: list[object] = []
        self.calls: list[str] = []
        self.answers = asyncio.Event()
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def running(self) -> int:
        return len(self.runs)

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def change(self, *, loaded: bool = False, failure: EngineError | None = None) -> None:
        self.loaded, self.failure = loaded, failure
        if loaded:
            self.capabilities = Capabilities(
                backend="fake", model="m", context_length=64, slots=self.slots
            )
        self._changed.set()
        for callback in self._callbacks:
            callback()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.slots,)

    async def unload(self) -> None:
        self.calls.append("unload")

    def revive(self) -> None:
        self.calls.append("revive")
        self.change()

    def abandon(self) -> None:
        self.calls.append("abandon")

    def spawn(self) -> None:
        self.calls.append("spawn")

    async def ready(self) -> Capabilities:
        while not self.loaded:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        assert self.capabilities is not None
        return self.capabilities

    def start_run(self, stream: TokenStream) -> None:
        self.runs.append(stream)

    def abort(self, run_id: int) -> None:
        self.calls.append(f"abort {run_id}")

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        self.calls.append(f"kill_stuck_run {run_id}")

    async def call(self, op: SideCall, payload: Any) -> Any:
        self.calls.append(op)
        await self.answers.wait()
        return payload

    def detach(self) -> None:
        self.calls.append("detach")

    async def close(self) -> None:
        self.calls.append("close")
        self.change(failure=EngineClosed("closed"))


@pytest.fixture
def copies() -> list[FakeHost]:
    return [FakeHost(), FakeHost()]


@pytest.fixture
def host(copies: list[FakeHost]) -> CopiesHost:
    return CopiesHost(copies)


def run(host: CopiesHost) -> None:
    host.start_run(cast("TokenStream", object()))


async def test_pool_is_ready_as_soon_as_one_copy_is(
    host: CopiesHost, copies: list[FakeHost]
) -> None:
    waiting = asyncio.create_task(host.ready())
    await run_ready_tasks()
    assert not waiting.done()
    copies[1].change(loaded=True)
    assert (await waiting).slots == 1
    copies[0].change(loaded=True)
    assert (await host.ready()).slots == 2
    await host.close()


def test_run_goes_to_the_copy_with_the_fewest_runs(
    host: CopiesHost, copies: list[FakeHost]
) -> None:
    for copy in copies:
        copy.change(loaded=True)
    run(host)
    run(host)
    assert [copy.running for copy in copies] == [1, 1]
    copies[0].runs.clear()
    run(host)
    assert [copy.running for copy in copies] == [1, 1]
    assert host.running == 2


def test_copy_that_is_not_loaded_gets_no_runs(host: CopiesHost, copies: list[FakeHost]) -> None:
    copies[0].change(loaded=True)
    run(host)
    run(host)
    assert [copy.running for copy in copies] == [2, 0]


def test_slots_are_the_sum_of_loaded_copies(host: CopiesHost, copies: list[FakeHost]) -> None:
    slots: list[int | None] = []
    host.on_change(lambda: slots.append(host.capabilities.slots if host.capabilities else None))
    copies[0].change(loaded=True)
    copies[1].change(loaded=True)
    copies[0].change()
    copies[1].change()
    assert slots == [1, 2, 1, 1]
    assert not host.loaded


def test_pool_fails_with_its_last_copy(host: CopiesHost, copies: list[FakeHost]) -> None:
    first, second = EngineDead("first"), EngineDead("second")
    copies[0].change(failure=first)
    assert host.failure is None
    copies[1].change(failure=second)
    assert host.failure is first


async def test_ready_raises_when_the_last_copy_fails(
    host: CopiesHost, copies: list[FakeHost]
) -> None:
    waiting = asyncio.create_task(host.ready())
    await run_ready_tasks()
    for copy, message in zip(copies, ("first", "second"), strict=True):
        copy.change(failure=EngineDead(message))
    with pytest.raises(EngineDead, match="first"):
        await asyncio.wait_for(waiting, WAIT_S)
    await host.close()


def test_abandon_kills_every_copy(host: CopiesHost, copies: list[FakeHost]) -> None:
    host.abandon()
    assert [copy.calls for copy in copies] == [["abandon"], ["abandon"]]


async def test_close_ends_waiting_ready_calls() -> None:
    class Stuck(FakeHost):
        async def ready(self) -> Capabilities:
            return await asyncio.Future()

    loaded = FakeHost()
    host = CopiesHost([loaded, Stuck()])
    loaded.change(loaded=True)
    await host.ready()
    await host.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_copy_that_fails_to_load_is_logged_and_ignored(
    host: CopiesHost, copies: list[FakeHost], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(host.ready())
    await run_ready_tasks()
    copies[0].change(failure=EngineDead("no memory"))
    copies[1].change(loaded=True)
    await waiting
    await wait_until(lambda: "copy 0 of a model is not there: no memory" in caplog.text)
    await host.close()


async def test_embedding_counts_as_load_and_other_calls_do_not(
    host: CopiesHost, copies: list[FakeHost]
) -> None:
    for copy in copies:
        copy.change(loaded=True)
    calls = [
        asyncio.create_task(host.call("embed", 1)),
        asyncio.create_task(host.call("render", 2)),
    ]
    await wait_until(lambda: [copy.calls for copy in copies] == [["embed"], ["render"]])
    run(host)
    assert [copy.running for copy in copies] == [0, 1]
    for copy in copies:
        copy.answers.set()
    assert await asyncio.gather(*calls) == [1, 2]
    run(host)
    assert [copy.running for copy in copies] == [1, 1]
    # The finished embedding does not count any more.
    run(host)
    assert [copy.running for copy in copies] == [2, 1]


async def test_pool_forwards_calls_to_all_copies(host: CopiesHost, copies: list[FakeHost]) -> None:
    host.spawn()
    host.abort(7)
    host.kill_stuck_run(8, EngineDead("deaf"))
    copies[0].restarts = 2
    assert host.restarts == 2
    await host.close()
    for copy in copies:
        assert copy.calls == ["spawn", "abort 7", "kill_stuck_run 8", "close"]

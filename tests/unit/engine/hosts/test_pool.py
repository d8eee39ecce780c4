"""Copies as one host: which of them runs what, and what becomes of the others when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.backends.base import SideCall
from engine.capabilities import Capabilities
from engine.errors import EngineClosed, EngineDead, EngineError
from engine.hosts.downtime import Downtime
from engine.hosts.pool import PoolHost
from engine.stream import TokenStream
from tests.waiting import WAIT_S, wait_until


class Copy:
    """A host that is loaded, lost and asked by hand."""

    threaded = False

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self.failure: EngineError | None = None
        self.capabilities: Capabilities | None = None
        self.loaded = False
        self.downtime: Downtime | None = None
        self.restarts = 0
        self.runs: list[object] = []
        self.told: list[str] = []
        self.answers = asyncio.Event()
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def running(self) -> int:
        return len(self.runs)

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def becomes(self, *, loaded: bool = False, failure: EngineError | None = None) -> None:
        self.loaded, self.failure = loaded, failure
        if loaded:
            self.capabilities = Capabilities(
                backend="fake", model="m", context_length=64, slots=self.slots
            )
        self._changed.set()
        for callback in self._callbacks:
            callback()

    def abandon(self) -> None:
        self.told.append("abandon")

    def spawn(self) -> None:
        self.told.append("spawn")

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
        self.told.append(f"abort {run_id}")

    def kill_stuck_run(self, run_id: int, error: EngineError) -> None:
        self.told.append(f"wedged {run_id}")

    async def call(self, op: SideCall, payload: Any) -> Any:
        self.told.append(op)
        await self.answers.wait()
        return payload

    def detach(self) -> None:
        self.told.append("detach")

    async def close(self) -> None:
        self.told.append("close")
        self.becomes(failure=EngineClosed("closed"))


@pytest.fixture
def copies() -> list[Copy]:
    return [Copy(), Copy()]


@pytest.fixture
def pool(copies: list[Copy]) -> PoolHost:
    return PoolHost(copies)


def run(pool: PoolHost) -> None:
    pool.start_run(cast("TokenStream", object()))


async def test_ready_as_soon_as_one_copy_is(pool: PoolHost, copies: list[Copy]) -> None:
    waiting = asyncio.create_task(pool.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    copies[1].becomes(loaded=True)
    assert (await waiting).slots == 1
    copies[0].becomes(loaded=True)
    assert (await pool.ready()).slots == 2
    await pool.close()


def test_each_run_goes_to_the_least_busy_copy(pool: PoolHost, copies: list[Copy]) -> None:
    for copy in copies:
        copy.becomes(loaded=True)
    run(pool)
    run(pool)
    assert [copy.running for copy in copies] == [1, 1]
    copies[0].runs.clear()
    run(pool)
    assert [copy.running for copy in copies] == [1, 1]
    assert pool.running == 2


def test_a_copy_that_is_not_loaded_gets_none(pool: PoolHost, copies: list[Copy]) -> None:
    copies[0].becomes(loaded=True)
    run(pool)
    run(pool)
    assert [copy.running for copy in copies] == [2, 0]


def test_slots_are_those_of_the_copies_that_are_loaded(pool: PoolHost, copies: list[Copy]) -> None:
    told: list[int | None] = []
    pool.on_change(lambda: told.append(pool.capabilities.slots if pool.capabilities else None))
    copies[0].becomes(loaded=True)
    copies[1].becomes(loaded=True)
    copies[0].becomes()
    copies[1].becomes()
    assert told == [1, 2, 1, 1]
    assert not pool.loaded


def test_it_fails_with_the_last_copy(pool: PoolHost, copies: list[Copy]) -> None:
    first, second = EngineDead("first"), EngineDead("second")
    copies[0].becomes(failure=first)
    assert pool.failure is None
    copies[1].becomes(failure=second)
    assert pool.failure is first


async def test_who_waits_is_told_when_the_last_copy_fails(
    pool: PoolHost, copies: list[Copy]
) -> None:
    waiting = asyncio.create_task(pool.ready())
    await asyncio.sleep(0)
    for copy, said in zip(copies, ("first", "second"), strict=True):
        copy.becomes(failure=EngineDead(said))
    with pytest.raises(EngineDead, match="first"):
        await asyncio.wait_for(waiting, WAIT_S)
    await pool.close()


def test_abandon_kills_every_copy(pool: PoolHost, copies: list[Copy]) -> None:
    pool.abandon()
    assert [copy.told for copy in copies] == [["abandon"], ["abandon"]]


async def test_close_leaves_nobody_waiting_for_a_copy() -> None:
    class Stuck(Copy):
        async def ready(self) -> Capabilities:
            return await asyncio.Future()

    loaded = Copy()
    pool = PoolHost([loaded, Stuck()])
    loaded.becomes(loaded=True)
    await pool.ready()
    await pool.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_that_does_not_load_is_told_and_waited_for_no_more(
    pool: PoolHost, copies: list[Copy], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(pool.ready())
    await asyncio.sleep(0)
    copies[0].becomes(failure=EngineDead("no memory"))
    copies[1].becomes(loaded=True)
    await waiting
    await wait_until(lambda: "copy 0 of a model is not there: no memory" in caplog.text)
    await pool.close()


async def test_a_vector_holds_its_copy_and_other_calls_do_not(
    pool: PoolHost, copies: list[Copy]
) -> None:
    for copy in copies:
        copy.becomes(loaded=True)
    calls = [
        asyncio.create_task(pool.call("embed", 1)),
        asyncio.create_task(pool.call("render", 2)),
    ]
    await wait_until(lambda: [copy.told for copy in copies] == [["embed"], ["render"]])
    run(pool)
    assert [copy.running for copy in copies] == [0, 1]
    for copy in copies:
        copy.answers.set()
    assert await asyncio.gather(*calls) == [1, 2]
    run(pool)
    assert [copy.running for copy in copies] == [1, 1]
    # It holds it no more.
    run(pool)
    assert [copy.running for copy in copies] == [2, 1]


async def test_all_are_begun_asked_and_closed(pool: PoolHost, copies: list[Copy]) -> None:
    pool.spawn()
    pool.abort(7)
    pool.kill_stuck_run(8, EngineDead("deaf"))
    copies[0].restarts = 2
    assert pool.restarts == 2
    await pool.close()
    for copy in copies:
        assert copy.told == ["spawn", "abort 7", "wedged 8", "close"]

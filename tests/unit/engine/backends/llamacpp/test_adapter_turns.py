"""Turns of generations with different adapters: order, fairness and aborts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import pytest

from engine.backends.llamacpp.adapter_turns import AdapterTurns


class Generation:
    """A generation on its own thread, which runs until it is ended."""

    def __init__(self, turns: AdapterTurns, adapter: str | None) -> None:
        self._turns, self._adapter = turns, adapter
        self._aborted, self._ended = threading.Event(), threading.Event()
        self._decided = threading.Event()
        self.has_turn = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with self._turns.take(self._adapter, self._aborted) as self.has_turn:
            self._decided.set()
            if self.has_turn:
                self._ended.wait(10)

    def start(self) -> Self:
        """Start it; return when it runs or waits."""
        self._thread.start()
        self.is_running(wait_s=0.05)
        return self

    def is_running(self, wait_s: float = 5) -> bool:
        """Return whether it has its turn within a time."""
        return self._decided.wait(wait_s) and self.has_turn

    def is_waiting(self) -> bool:
        return not self._decided.wait(0.05)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(5)

    def abort(self) -> None:
        self._aborted.set()
        self._turns.wake()
        self._thread.join(5)


Start = Callable[[str | None], Generation]


@pytest.fixture
def start() -> Start:
    """Return a function that starts a generation with an adapter."""
    turns = AdapterTurns()
    return lambda adapter: Generation(turns, adapter).start()


def test_generations_with_one_adapter_run_together(start: Start) -> None:
    assert all(start("one").is_running() for _ in range(3))


def test_another_adapter_waits_for_the_last_running_generation(start: Start) -> None:
    first, second, other = start(None), start(None), start("one")
    first.end()
    assert other.is_waiting()
    second.end()
    assert other.is_running()


def test_later_requests_wait_behind_another_adapter(start: Start) -> None:
    first, other, late = start(None), start("one"), start(None)
    assert late.is_waiting()
    first.end()
    assert other.is_running()
    assert late.is_waiting()
    other.end()
    assert late.is_running()


def test_waiting_requests_with_the_next_adapter_run_together(start: Start) -> None:
    running, one, two, also_one = start(None), start("one"), start("two"), start("one")
    running.end()
    assert one.is_running()
    assert also_one.is_running()
    assert two.is_waiting()
    one.end()
    also_one.end()
    assert two.is_running()


def test_aborted_request_gives_up_its_place(start: Start) -> None:
    running, other, late = start(None), start("one"), start(None)
    other.abort()
    assert not other.has_turn
    assert late.is_running()
    running.end()
    late.end()
    assert start("two").is_running()

"""Garbage collector tuning freezes long-lived objects, and still frees dropped ones later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from emulator.server import gc_tuning
from emulator.server.gc_tuning import GarbageCollectorTuning
from tests.conftest import UNFREEZE
from tests.virtual_time import VirtualClock


class _Kept:
    """An object that can be in a reference cycle."""

    other: _Kept


@pytest.fixture(autouse=True)
def frozen_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow unfreezing as in a server, and refreeze the objects of pytest afterwards."""
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    yield
    gc.freeze()


@pytest.fixture
async def gc_tuned(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GarbageCollectorTuning]:
    """Yield one with a low threshold. The tests call `check` before its task does."""
    monkeypatch.setattr(gc_tuning, "_MIN_GROWTH_OBJECTS", 1_000)
    tuning = GarbageCollectorTuning()
    yield tuning
    tuning.close()


def _dropped_ring() -> weakref.ref[_Kept]:
    """Return a weak reference to an object in a cycle that was frozen and then dropped."""
    job = _Kept()
    job.other = job
    reference = weakref.ref(job)
    gc.collect()
    return reference


def _is_tracked(target: object) -> bool:
    """Return whether the next full collection would traverse an object."""
    return any(each is target for each in gc.get_objects())


async def test_survivors_of_a_full_collection_are_frozen(gc_tuned: GarbageCollectorTuning) -> None:
    gc_tuned.start()
    job = _Kept()
    assert _is_tracked(job)
    gc.collect(1)
    assert _is_tracked(job)
    gc.collect()
    assert not _is_tracked(job)


@pytest.mark.long
async def test_frozen_objects_are_freed_without_references(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    job = _Kept()
    reference = weakref.ref(job)
    gc.collect()
    del job
    assert reference() is None


async def test_cycles_are_freed_when_the_frozen_objects_double(
    gc_tuned: GarbageCollectorTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Use the counts of a small server: to double the test process's own would take seconds.
    frozen = 10_000
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    gc_tuned.start()
    reference = _dropped_ring()
    frozen = 21_000
    gc_tuned.check()
    assert reference() is not None, "there was not more than before"
    gc.collect()
    frozen = 21_001
    gc_tuned.check()
    assert reference() is None


@pytest.mark.long
async def test_growth_counts_from_the_minimum(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    ballast: list[list[None]] = [[] for _ in range(100_000)]
    gc.collect()
    gc_tuned._collect_all()
    # The objects are dropped, like jobs after their retention.
    frozen_before = gc_tuned._min_frozen
    ballast.clear()
    gc.collect()
    gc_tuned.check()
    # Other objects may have been frozen in between.
    assert gc_tuned._min_frozen < frozen_before - 90_000


@pytest.mark.long
async def test_next_full_collection_is_not_delayed(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    kept: list[list[None]] = [[] for _ in range(40_000)]
    assert not _is_tracked(kept[0])


@pytest.mark.long
async def test_next_server_frees_cycles_of_an_earlier_one() -> None:
    first = GarbageCollectorTuning()
    first.start()
    reference = _dropped_ring()
    first.close()
    assert reference() is not None
    second = GarbageCollectorTuning()
    second.start()
    try:
        assert reference() is None
    finally:
        second.close()


@pytest.mark.long
async def test_check_runs_periodically(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    checks: list[GarbageCollectorTuning] = []
    monkeypatch.setattr(GarbageCollectorTuning, "check", lambda self: checks.append(self))
    tuning = GarbageCollectorTuning()
    tuning.start()
    try:
        await clock.advance(180)
        assert len(checks) == 3
    finally:
        tuning.close()


@pytest.mark.long
async def test_close_restores_the_collector() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    tuning = GarbageCollectorTuning()
    tuning.start()
    assert (gc.get_threshold(), len(gc.callbacks)) != before
    tuning.close()
    assert (gc.get_threshold(), len(gc.callbacks)) == before


def test_close_without_start_changes_nothing() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    GarbageCollectorTuning().close()
    assert (gc.get_threshold(), len(gc.callbacks)) == before

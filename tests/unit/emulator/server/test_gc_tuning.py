"""The collector: what is kept is looked at once, and nothing that is dropped stays for ever."""

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
    """Something that can refer to itself."""

    other: _Kept


@pytest.fixture(autouse=True)
def frozen_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the collector be tuned as in a server, and freeze the objects of pytest again."""
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    yield
    gc.freeze()


@pytest.fixture
async def gc_tuned(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GarbageCollectorTuning]:
    """Yield one for which a few objects are many. The tests call `check` before its task does."""
    monkeypatch.setattr(gc_tuning, "_MIN_GROWTH_OBJECTS", 1_000)
    found = GarbageCollectorTuning()
    yield found
    found.close()


def _dropped_ring() -> weakref.ref[_Kept]:
    """Return what is seen of something that refers to itself, was set aside and then dropped."""
    job = _Kept()
    job.other = job
    seen = weakref.ref(job)
    gc.collect()
    return seen


def _looked_at(found: object) -> bool:
    """Whether the collector's next full look would go through an object."""
    return any(each is found for each in gc.get_objects())


async def test_survivors_of_a_full_collection_are_frozen(gc_tuned: GarbageCollectorTuning) -> None:
    gc_tuned.start()
    job = _Kept()
    assert _looked_at(job)
    gc.collect(1)
    assert _looked_at(job)
    gc.collect()
    assert not _looked_at(job)


async def test_frozen_objects_are_freed_without_references(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    job = _Kept()
    seen = weakref.ref(job)
    gc.collect()
    del job
    assert seen() is None


async def test_cycles_are_freed_when_the_frozen_objects_double(
    gc_tuned: GarbageCollectorTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counts of a small server: those of the tests' own process would take seconds to double.
    frozen = 10_000
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    gc_tuned.start()
    seen = _dropped_ring()
    frozen = 21_000
    gc_tuned.check()
    assert seen() is not None, "there was not more than before"
    gc.collect()
    frozen = 21_001
    gc_tuned.check()
    assert seen() is None


@pytest.mark.long
async def test_growth_counts_from_the_minimum(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    many: list[list[None]] = [[] for _ in range(100_000)]
    gc.collect()
    gc_tuned._collect_all()
    # They end, as jobs do that are kept no longer.
    most = gc_tuned._min_frozen
    many.clear()
    gc.collect()
    gc_tuned.check()
    # Something else may have been set aside in between.
    assert gc_tuned._min_frozen < most - 90_000


@pytest.mark.long
async def test_next_full_collection_is_not_delayed(
    gc_tuned: GarbageCollectorTuning,
) -> None:
    gc_tuned.start()
    kept: list[list[None]] = [[] for _ in range(40_000)]
    assert not _looked_at(kept[0])


@pytest.mark.long
async def test_next_server_frees_cycles_of_an_earlier_one() -> None:
    first = GarbageCollectorTuning()
    first.start()
    seen = _dropped_ring()
    first.close()
    assert seen() is not None
    second = GarbageCollectorTuning()
    second.start()
    try:
        assert seen() is None
    finally:
        second.close()


async def test_check_runs_periodically(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    checks: list[GarbageCollectorTuning] = []
    monkeypatch.setattr(GarbageCollectorTuning, "check", lambda self: checks.append(self))
    found = GarbageCollectorTuning()
    found.start()
    try:
        await clock.advance(180)
        assert len(checks) == 3
    finally:
        found.close()


async def test_close_restores_the_collector() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    found = GarbageCollectorTuning()
    found.start()
    assert (gc.get_threshold(), len(gc.callbacks)) != before
    found.close()
    assert (gc.get_threshold(), len(gc.callbacks)) == before


def test_close_without_start_changes_nothing() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    GarbageCollectorTuning().close()
    assert (gc.get_threshold(), len(gc.callbacks)) == before

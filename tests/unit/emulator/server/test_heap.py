"""The heap: trimmed after it has grown, and only then."""

from __future__ import annotations

import pytest

from emulator.server import heap
from emulator.server.heap import Heap
from engine.doctor.machine_info import resident_mb


def memory_mb() -> float:
    size = resident_mb()
    assert size is not None
    return size


def test_trim_returns_memory_between_used_blocks() -> None:
    before = memory_mb()
    # Small enough for the C library's heap. The block at the end keeps that heap from shrinking.
    blocks = [b"%d" % number * 2_000 for number in range(30_000)]
    last = bytearray(blocks[-1])
    assert memory_mb() > before + 50
    blocks.clear()
    heap._trim()
    assert memory_mb() < before + 20
    assert last


@pytest.mark.parametrize(
    ("sizes", "trims"),
    [
        ([100, 120, 140], 0),
        ([100, 140, 110, 120], 1),
        ([100, 140, 139, 160], 1),
        ([None, None], 0),
    ],
)
def test_trim_if_grown_trims_only_after_growth(
    monkeypatch: pytest.MonkeyPatch, sizes: list[float | None], trims: int
) -> None:
    trimmed: list[None] = []
    remaining = iter(sizes)
    monkeypatch.setattr(heap, "_trim", lambda: trimmed.append(None))
    monkeypatch.setattr(heap, "resident_mb", lambda: next(remaining))
    watched = Heap()
    watched.trim_if_grown()
    if len(sizes) > 2:
        watched.trim_if_grown()
    assert len(trimmed) == trims

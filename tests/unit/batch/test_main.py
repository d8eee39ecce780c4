"""What the command does for itself before a batch is begun."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import batch.__main__
from batch.cli.run import RunCommand


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leaves Python's collector as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_the_collector_has_little_to_look_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported stays, and what a line leaves goes by itself: looks for cycles find none."""
    seen: list[tuple[int, int]] = []

    def run(self: RunCommand) -> int:
        seen.append((gc.get_freeze_count(), gc.get_threshold()[0]))
        return 0

    monkeypatch.setattr(RunCommand, "run", run)
    # For the whole process, other tests included.
    monkeypatch.setattr("handler.logs.configure_logging", lambda *level, **how: None)
    monkeypatch.setattr(sys, "argv", ["batch", "run", "-i", "in", "-o", "out"])
    loaded = len(gc.get_objects())
    assert batch.__main__.main() == 0
    [(aside, new)] = seen
    assert aside > loaded / 2
    assert new >= 10_000

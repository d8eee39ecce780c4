"""The garbage collector settings of `batch run`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import batch.__main__
from batch.cli.run import RunCommand


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the garbage collector settings."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_run_freezes_imports_and_raises_the_gc_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported objects are permanent, and lines leave no reference cycles."""
    gc_states: list[tuple[int, int]] = []

    def run(self: RunCommand) -> int:
        gc_states.append((gc.get_freeze_count(), gc.get_threshold()[0]))
        return 0

    monkeypatch.setattr(RunCommand, "run", run)
    # For the whole process, other tests included.
    monkeypatch.setattr("handler.logs.configuration.configure_logging", lambda *level, **how: None)
    monkeypatch.setattr(sys, "argv", ["batch", "run", "-i", "in", "-o", "out"])
    object_count = len(gc.get_objects())
    assert batch.__main__.main() == 0
    [(frozen, threshold)] = gc_states
    assert frozen > object_count / 2
    assert threshold >= 10_000


@pytest.mark.parametrize(
    ("chosen", "used"), [(None, "console"), ("json", "json"), ("console", "console")]
)
def test_log_of_a_command_with_messages_is_readable_unless_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, used: str
) -> None:
    styles: list[str] = []
    monkeypatch.setattr(RunCommand, "run", lambda self: 0)
    monkeypatch.setattr(
        "handler.logs.configuration.configure_logging",
        lambda level, style, **how: styles.append(style),
    )
    monkeypatch.setenv("LOG_FORMAT", chosen or "")
    assert batch.__main__.main(["run", "-i", "in", "-o", "out"]) == 0
    assert styles == [used]

import logging

import pytest

from engine.hooks import EngineEvent, Hooks, HostLost


def test_every_hook_is_told_in_order() -> None:
    told: list[tuple[int, EngineEvent]] = []
    hooks = Hooks([lambda event: told.append((1, event)), lambda event: told.append((2, event))])
    event = HostLost("gone", dead=False)
    hooks(event)
    assert told == [(1, event), (2, event)]


def test_hook_that_raises_is_logged_and_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[EngineEvent] = []

    def broken(event: EngineEvent) -> None:
        raise RuntimeError("a metric of mine is broken")

    event = HostLost("gone", dead=True)
    with caplog.at_level(logging.ERROR):
        Hooks([broken, told.append])(event)
    assert told == [event]
    assert "HostLost" in caplog.text
    assert "a metric of mine is broken" in caplog.text

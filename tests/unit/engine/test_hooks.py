import logging

import pytest

from engine.hooks import EngineEvent, Hooks, HostLost


def test_hooks_are_called_in_order() -> None:
    calls: list[tuple[int, EngineEvent]] = []
    hooks = Hooks([lambda event: calls.append((1, event)), lambda event: calls.append((2, event))])
    event = HostLost("gone", dead=False)
    hooks(event)
    assert calls == [(1, event), (2, event)]


def test_exception_of_a_hook_is_logged_and_other_hooks_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[EngineEvent] = []

    def broken(event: EngineEvent) -> None:
        raise RuntimeError("a metric of mine is broken")

    event = HostLost("gone", dead=True)
    with caplog.at_level(logging.ERROR):
        Hooks([broken, calls.append])(event)
    assert calls == [event]
    assert "HostLost" in caplog.text
    assert "a metric of mine is broken" in caplog.text

from __future__ import annotations

from engine.errors import EngineClosed, ModelLoadFailed
from engine.models.load_retry import LoadRetry


def test_pause_doubles_to_a_minute_and_a_load_resets_it() -> None:
    retry, pauses = LoadRetry(), []
    for _ in range(9):
        pauses.append(retry.next_pause_s)
        failure = ModelLoadFailed("broken")
        retry.record_failure(failure)
        # The same failure is reported several times.
        retry.record_failure(failure)
        assert not retry.is_due(failure)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    retry.record_load()
    assert retry.next_pause_s == 1


def test_closed_engine_is_not_retried() -> None:
    retry = LoadRetry()
    assert retry.is_due(ModelLoadFailed("broken"))
    assert not retry.is_due(EngineClosed("the engine is shutting down"))

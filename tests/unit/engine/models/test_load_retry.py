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


def test_add_time_says_when_the_model_is_tried_again() -> None:
    now = [100.0]
    retry = LoadRetry(lambda: now[0])
    failures = [ModelLoadFailed("out of memory", param="model") for _ in range(2)]
    retry.record_failure(failures[0])
    retry.record_failure(failures[1])
    now[0] += 0.5
    error = retry.add_time(failures[1])
    assert error.message == "out of memory; a request in 2 s or later tries it again"
    assert (type(error), error.details) == (ModelLoadFailed, {"param": "model"})
    assert not retry.is_due(failures[1])
    now[0] += 1.5
    assert retry.is_due(failures[1])


def test_add_time_returns_other_errors_as_they_are() -> None:
    retry = LoadRetry()
    for error in (ModelLoadFailed("another model"), EngineClosed("the engine is shutting down")):
        assert retry.add_time(error) is error
    retry.record_failure(closed := EngineClosed("the engine is shutting down"))
    assert retry.add_time(closed) is closed

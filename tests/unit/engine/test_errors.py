"""Every error is the same error on the other side of the process boundary."""

import orjson
import pytest

from engine.errors import (
    EngineError,
    GenerationFailed,
    PromptTooLong,
    QueueFull,
    RequestRejected,
    engine_errors,
    from_wire,
)


@pytest.mark.parametrize("kind", list(engine_errors()))
def test_each_class_survives_the_wire(kind: type[EngineError]) -> None:
    error = kind("what happened: 😀", param="prompt", tokens=12, seconds=0.5, nothing=None)
    again = from_wire(orjson.loads(orjson.dumps(error.to_wire())))
    assert type(again) is kind
    assert (again.message, again.details) == (error.message, error.details)
    assert str(again) == "what happened: 😀"


def test_tree_has_every_class_of_the_module() -> None:
    import engine.errors as module

    named = {
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, EngineError)
    }
    assert set(engine_errors()) == named
    assert next(engine_errors()) is EngineError


def test_unknown_name_is_a_failed_generation() -> None:
    again = from_wire(["Unheard", "of", None])
    assert type(again) is GenerationFailed
    assert (again.message, again.details) == ("of", {})


def test_kinds_that_callers_tell_apart() -> None:
    assert issubclass(PromptTooLong, RequestRejected)
    assert not issubclass(QueueFull, RequestRejected)

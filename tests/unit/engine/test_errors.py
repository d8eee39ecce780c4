"""Errors are rebuilt unchanged after a transfer between processes."""

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
    rebuilt = from_wire(orjson.loads(orjson.dumps(error.to_wire())))
    assert type(rebuilt) is kind
    assert (rebuilt.message, rebuilt.details) == (error.message, error.details)
    assert str(rebuilt) == "what happened: 😀"


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
    rebuilt = from_wire(["Unheard", "of", None])
    assert type(rebuilt) is GenerationFailed
    assert (rebuilt.message, rebuilt.details) == ("of", {})


def test_error_classes_have_the_expected_bases() -> None:
    assert issubclass(PromptTooLong, RequestRejected)
    assert not issubclass(QueueFull, RequestRejected)

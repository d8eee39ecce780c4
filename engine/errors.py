"""Every way a generation can fail, as one tree.

    EngineError
    ├── RequestRejected          this engine cannot serve this request as it stands
    │   ├── PromptTooLong
    │   └── UnsupportedParameter
    ├── QueueFull                the bounded queue is full, come back later
    ├── EngineUnavailable        nothing can be generated at the moment, or ever again
    │   ├── ModelLoadFailed
    │   ├── EngineDead
    │   ├── EngineRestarting
    │   └── EngineClosed
    ├── GenerationFailed         it was running and did not get to its end
    │   ├── BackendFailed
    │   ├── EngineCrashed
    │   │   └── EngineReplaced
    │   ├── EngineStalled
    │   └── ConsumerTooSlow
    ├── GenerationTimeout        the request's own time was up
    └── GenerationCancelled      somebody asked for it to stop

`handler.errors` maps each class to a code, a type and an HTTP status; a test walks this tree and
fails when a class has no row there.
"""

from __future__ import annotations

from collections.abc import Iterator

Detail = str | int | float | None


class EngineError(Exception):
    """Base of all errors the engine raises on purpose.

    `message` is one sentence fit for the person who sent the request; `details` are plain values,
    so that an error can cross from the host process and be the same error on the other side.
    """

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_wire(self) -> list[object]:
        """Return the error as JSON-ready values, the inverse of `from_wire`."""
        return [type(self).__name__, self.message, self.details]


class RequestRejected(EngineError):
    """The request is well formed, but this engine and model cannot serve it."""


class PromptTooLong(RequestRejected):
    """The prompt leaves no room in the context; details: prompt_tokens, context_length."""


class UnsupportedParameter(RequestRejected):
    """A parameter whose meaning would be lost if it were ignored; details: param."""


class QueueFull(EngineError):
    """As many requests wait as may wait; details: retry_after_s."""


class EngineUnavailable(EngineError):
    """No generation can be started."""


class ModelLoadFailed(EngineUnavailable):
    """The model or its library could not be loaded; trying again changes nothing."""


class EngineDead(EngineUnavailable):
    """The engine was down for too long, or hung where it cannot be restarted."""


class EngineRestarting(EngineUnavailable):
    """The engine crashed and its restart takes longer than a moment; details: retry_after_s."""


class EngineClosed(EngineUnavailable):
    """The engine is shutting down."""


class GenerationFailed(EngineError):
    """The generation was running and ended without an answer."""


class BackendFailed(GenerationFailed):
    """The backend reported an error for this one request."""


class EngineCrashed(GenerationFailed):
    """The engine host died with the request on it."""


class EngineReplaced(EngineCrashed):
    """The engine host was ended because of another request, or died of another one's abort."""


class EngineStalled(GenerationFailed):
    """No token came within the prefill or stall clock."""


class ConsumerTooSlow(GenerationFailed):
    """The reader left more text undelivered than one stream may hold."""


class GenerationTimeout(EngineError):
    """The request took longer than its own limit, waiting included."""


class GenerationCancelled(EngineError):
    """The request was cancelled by its client or by the operator."""


def engine_errors(root: type[EngineError] = EngineError) -> Iterator[type[EngineError]]:
    """Yield the tree's classes, root first, so that tables over them can be checked whole."""
    yield root
    for child in root.__subclasses__():
        yield from engine_errors(child)


def from_wire(wire: list[object]) -> EngineError:
    """Rebuild an error that `to_wire` made; an unknown name becomes `GenerationFailed`."""
    name, message, details = wire
    by_name = {cls.__name__: cls for cls in engine_errors()}
    fields = details if isinstance(details, dict) else {}
    return by_name.get(str(name), GenerationFailed)(str(message), **fields)

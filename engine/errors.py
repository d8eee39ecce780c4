"""Every way a generation can fail, as one tree.

    EngineError
    ├── RequestRejected          this engine cannot serve this request as it stands
    │   ├── PromptTooLong
    │   └── UnsupportedParameter
    ├── QueueFull                the bounded queue is full, come back later
    ├── EngineUnavailable        no generation can start at the moment, or ever again
    │   ├── ModelLoadFailed
    │   ├── EngineDead
    │   ├── EngineRestarting
    │   └── EngineClosed
    ├── GenerationFailed         a running generation ended without an answer
    │   ├── BackendFailed
    │   ├── EngineCrashed
    │   │   └── EngineReplaced
    │   ├── EngineStalled
    │   └── ConsumerTooSlow
    ├── GenerationTimeout        the request reached its own time limit
    └── GenerationCancelled      the client or the operator stopped it

`handler.errors` maps each class to a code, a type and an HTTP status; a test walks this tree and
fails when a class has no row there.
"""

from __future__ import annotations

from collections.abc import Iterator

Detail = str | int | float | None
# A detail of ModelLoadFailed for the host, which does not pass it on.
IS_TRANSIENT = "is_transient"


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose.

    `message` is one sentence for the client. `details` are plain values, so that an error can be
    sent from the host process and rebuilt on the other side.
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

    def rename_param(self, old: str, new: str) -> RequestRejected:
        """Return the same error with `new` as the parameter's name; `old` begins the message."""
        message = new + self.message.removeprefix(old)
        return type(self)(message, **(self.details | {"param": new}))


class PromptTooLong(RequestRejected):
    """The prompt leaves no room in the context; details: prompt_tokens, context_length."""


class UnsupportedParameter(RequestRejected):
    """A parameter whose meaning would be lost if it were ignored; details: param."""


class QueueFull(EngineError):
    """The maximum number of requests is waiting already; details: retry_after_s."""


class EngineUnavailable(EngineError):
    """No generation can be started."""


class ModelLoadFailed(EngineUnavailable):
    """The model or its library could not be loaded; a retry would fail as well.

    Except with the detail `IS_TRANSIENT`: another program may be the reason.
    """


class EngineDead(EngineUnavailable):
    """The engine was down for too long, or is stuck and cannot be restarted."""


class EngineRestarting(EngineUnavailable):
    """The engine crashed and its restart takes longer than a moment; details: retry_after_s."""


class EngineClosed(EngineUnavailable):
    """The engine is shutting down."""


class GenerationFailed(EngineError):
    """The generation was running and ended without an answer."""


class BackendFailed(GenerationFailed):
    """The backend reported an error for this one request."""


class EngineCrashed(GenerationFailed):
    """The engine host died while the request was running on it."""


class EngineReplaced(EngineCrashed):
    """The engine host ended because of another request or the abort of one."""


class EngineStalled(GenerationFailed):
    """No token came within the prefill or stall timeout."""


class ConsumerTooSlow(GenerationFailed):
    """The reader left more text undelivered than one stream may hold."""


class GenerationTimeout(EngineError):
    """The request took longer than its own limit, waiting included."""


class GenerationCancelled(EngineError):
    """The request was cancelled by its client or by the operator."""


def engine_errors(root: type[EngineError] = EngineError) -> Iterator[type[EngineError]]:
    """Yield the tree's classes, root first, so that tests can check tables of all errors."""
    yield root
    for child in root.__subclasses__():
        yield from engine_errors(child)


def from_wire(wire: list[object]) -> EngineError:
    """Rebuild an error from `to_wire`; an unknown name becomes `GenerationFailed`."""
    name, message, details = wire
    by_name = {cls.__name__: cls for cls in engine_errors()}
    fields = details if isinstance(details, dict) else {}
    return by_name.get(str(name), GenerationFailed)(str(message), **fields)

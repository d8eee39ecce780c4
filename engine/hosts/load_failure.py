"""The errors of loads that clients read."""

from __future__ import annotations

from pathlib import Path

from engine.backends.options import BackendOptions, options_to_wire
from engine.errors import EngineError


def name_model(error: EngineError, options: BackendOptions) -> EngineError:
    """Return an error for clients: it names the model, and files without their folders.

    `options` are those of the model's backend, which have the paths that the error may contain.
    """
    message = error.message
    for value in options_to_wire(options).values():
        if isinstance(value, str | Path) and "/" in str(value):
            message = message.replace(str(value), Path(value).name)
    return type(error)(
        f"the model {options.model_name} cannot be loaded: {message}", **error.details
    )

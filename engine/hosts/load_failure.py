"""The errors of loads that clients read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import EngineError


def name_model(error: EngineError, options: Mapping[str, Any]) -> EngineError:
    """Return an error for clients: it names the model, and files without their folders.

    `options` are those of the model's backend, which have the paths that the error may contain.
    """
    message = error.message
    for value in options.values():
        if isinstance(value, str | Path) and "/" in str(value):
            message = message.replace(str(value), Path(value).name)
    name = options.get("model_name")
    return type(error)(f"the model {name} cannot be loaded: {message}", **error.details)

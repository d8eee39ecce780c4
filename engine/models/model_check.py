"""Check the file of a model before others are unloaded to make room for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.backends.gguf import read_header
from engine.errors import ModelLoadFailed


def check_model_file(path: Any, name: Any) -> None:
    """Check that a model's file exists and that it is no damaged GGUF; None has no file.

    The error names the model, and no path of the server, because clients read it.

    Raises:
        ModelLoadFailed: the file is missing or damaged.
    """
    if path is None:
        return
    file = Path(path)
    if not file.exists():
        raise ModelLoadFailed(f"the file of the model {name} is missing")
    if file.suffix == ".gguf" and file.is_file():
        try:
            read_header(file)
        except ModelLoadFailed as error:
            raise ModelLoadFailed(
                f"the file of the model {name} cannot be read as a GGUF"
            ) from error

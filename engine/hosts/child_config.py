"""The configuration of a backend as it is sent to its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.backends import open_shared_files
from engine.config import BackendConfig
from engine.errors import ModelLoadFailed
from engine.hosts.frames import encode


def encode_config(config: BackendConfig, *, try_run: bool) -> tuple[bytes, Sequence[int]]:
    """Return the first frame for a child, and the descriptors that it inherits.

    With `try_run` the child tries the model with a run of its own before it reports the load.
    Raises ModelLoadFailed for a value that cannot be sent.
    """
    options, shared_files = open_shared_files(config.options)
    try:
        frame = encode(replace(config, options=options).to_wire() | {"try_run": try_run})
    except TypeError as error:
        raise ModelLoadFailed(
            "a path or name that was set for the engine cannot be passed on to its "
            f"process, for it is not UTF-8: {error}"
        ) from None
    return frame, shared_files

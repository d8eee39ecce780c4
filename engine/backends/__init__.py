"""The backends that produce tokens; each one is imported only when it is built."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from engine.backends.base import Backend
from engine.backends.options import (
    BackendOptions,
    LlamaCppOptions,
    OpenAIOptions,
    RkllmOptions,
    ScriptedOptions,
)


def build(options: BackendOptions) -> Backend:
    """Return a backend that is not loaded yet; `load` is the first call that uses its library."""
    match options:
        case LlamaCppOptions():
            from engine.backends.llamacpp import LlamaCppBackend

            return LlamaCppBackend(options)
        case OpenAIOptions():
            from engine.backends.openai import OpenAIBackend

            return OpenAIBackend(options)
        case RkllmOptions():
            from engine.backends.rkllm.backend import RkllmBackend

            return RkllmBackend(options)
        case ScriptedOptions():
            from engine.backends.scripted import ScriptedBackend

            return ScriptedBackend(options)
        case _:
            assert_never(options)


def open_shared_files(options: BackendOptions) -> tuple[BackendOptions, tuple[int, ...]]:
    """Open the files that all engine processes of a server share; return options with them, too.

    They are passed on to each process. Opened by each one on its own, a lock on the NPU's device
    would exclude the server's other processes.
    """
    files: tuple[int, ...] = ()
    if not isinstance(options, RkllmOptions):
        return options, files
    if options.device_lock:
        from engine.backends.rkllm.board.device_lock import open_device

        files = tuple(open_device(options.device_path))
        options = replace(options, device_files=files)
    if options.encoder_lock:
        from engine.backends.rkllm.board.encoder_lock import open_encoder_files

        options = replace(options, encoder_files=open_encoder_files())
        files += open_encoder_files()
    return options, files
